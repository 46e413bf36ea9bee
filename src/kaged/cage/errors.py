"""What can go wrong with a cage, one class per thing a caller handles differently."""

from __future__ import annotations

from kaged.base import JsonValue, KagedError


class CageError(KagedError):
    """A process was not started, or not kept; nothing ever runs uncaged because of one of these."""


class CageUnavailable(CageError):
    """This host lacks something every cage needs; `row` is the row of `kaged doctor` to look at."""

    code = "cage_unavailable"

    def __init__(
        self, message: str, *, row: str, fix: str | None = None, **data: JsonValue
    ) -> None:
        fix = fix or f"see the row {row!r} of `kaged doctor`"
        super().__init__(message, code=self.code, fix=fix, row=row, **data)
        self.row = row


class GrantRefused(CageError):
    """A granted path may not be shown inside a cage; `data.path` names it."""

    code = "cage_grant_refused"

    def __init__(self, path: str, why: str, *, fix: str | None = None, **data: JsonValue) -> None:
        super().__init__(f"{path}: {why}", code=self.code, fix=fix, path=path, why=why, **data)
        self.path = path


class PolicyConflict(CageError):
    """Two parts of a policy claim one place with different meanings."""

    code = "cage_policy_conflict"


class UnsafeArgument(CageError):
    """A string that must not reach a command line, an environment or bwrap's argument list."""

    code = "cage_unsafe_argument"


class ProgramMissing(CageError):
    """A program the command or an exec entry needs is not on this host; `data.program` names it."""

    code = "cage_program_missing"

    def __init__(self, program: str, why: str, *, fix: str | None = None) -> None:
        super().__init__(f"{program}: {why}", fix=fix, program=program, why=why)
        self.program = program


class CageStartFailed(CageError):
    """The sandbox tool gave up before the command ran; the message carries its own words."""

    code = "cage_start_failed"


class SpawnFailed(CageError):
    """An uncaged program could not be started."""

    code = "spawn_failed"


class WrongThread(CageError):
    """A spawn was tried from a thread that does not live as long as the daemon."""

    code = "cage_wrong_thread"
