"""What can go wrong with a project's files, as errors with a code.

No message names an absolute path of the host: they are shown to agents as they are.
"""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.kernel.describe import operator_fix
from kaged.workspace.text import sendable

_SHOWN_CHARS: Final = 200
_SHOWN_KEYS: Final = 8
SEALED_REMEDY: Final = 'set protect_kaged = "off" in [tools] of config.toml'


class PathRefused(KagedError):
    """The text names nothing that a tool may touch; `problem` says why in a few words.

    `resolved` is where it leads, told in the project's own names: `../..`, or the link in the
    project that leads out. Never where that lies on the host.
    """

    code = "invalid_params"

    def __init__(
        self, problem: str, requested: str, *, fix: str | None = None, resolved: str | None = None
    ) -> None:
        super().__init__(f"this path cannot be used: {problem}", fix=fix)
        self.problem = problem
        detail: JsonObject = {
            "fields": [{"field": "path", "problem": problem}],
            "path": _shortened(requested),
        }
        if resolved is not None:
            detail["resolved"] = _shortened(resolved)
        self.data["detail"] = detail


class PathSealed(KagedError):
    """The path belongs to what defines the project itself, and no tool may change it."""

    code = "capability_denied"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} defines the project and its cages; no tool may change it",
            fix=operator_fix(SEALED_REMEDY),
            detail=f"rw:fs:{path}",
        )


class PathProtected(KagedError):
    """A program of the host would run or obey what is written there, without anybody looking.

    `named` is the path that the operator would allow; `keys` are the command-bearing keys of a git
    configuration that the change is refused for.
    """

    code = "path_protected"

    def __init__(self, path: str, why: str, named: str, *, keys: tuple[str, ...] = ()) -> None:
        path = self.path = sendable(path)
        self.named = sendable(named)
        self.keys = tuple(sendable(key)[:_SHOWN_CHARS] for key in keys[:_SHOWN_KEYS])
        self.why = why
        self.remedy = allow_remedy(self.named)
        what = f"{path} with {', '.join(self.keys)}" if self.keys else path
        super().__init__(
            f"{what} is protected: {why}",
            fix=operator_fix(self.remedy),
            detail=f"rw:fs:{path}",
        )


def allow_remedy(named: str) -> str:
    """Return what an operator writes to let agents change a protected path."""
    return (
        f'add {{project = "<the project\'s folder>", path = "{named}"}} to allow_protected in '
        "[tools] of config.toml"
    )


class WrongKind(KagedError):
    """There is something, but of another kind than the call needs (a directory, a device)."""

    code = "invalid_params"

    def __init__(self, path: str, problem: str, *, fix: str | None = None) -> None:
        path = sendable(path)
        super().__init__(f"{path} {problem}", fix=fix)
        self.problem = problem
        self.data["detail"] = {"fields": [{"field": "path", "problem": problem}], "path": path}


class FileMissing(KagedError):
    """There is no such file; `requested` is how the caller wrote its path."""

    code = "file_not_found"

    def __init__(
        self, path: str, *, requested: str | None = None, did_you_mean: tuple[str, ...] = ()
    ) -> None:
        fix = f"did you mean {' or '.join(did_you_mean)}?" if did_you_mean else None
        super().__init__(f"there is no file {path}", fix=fix, path=path)
        if requested is not None:
            self.data["requested"] = _shortened(requested)
        if did_you_mean:
            self.data["did_you_mean"] = list(did_you_mean)


class FileExists(KagedError):
    """Something of that name is there already."""

    code = "file_exists"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} exists already", fix="overwrite it with file.write, or edit it", path=path
        )


class FileNotRead(KagedError):
    """The agent would overwrite what it has not seen."""

    code = "file_not_read"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__("Read the file before overwriting it.", path=path)


class FileChangedSinceRead(KagedError):
    """The content is another one than the agent last read or wrote; nothing was changed."""

    code = "file_changed_since_read"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} has changed since you read it", fix="read it again, then retry", path=path
        )


class FileBusy(KagedError):
    """Somebody else works on the file and did not finish in time."""

    code = "file_busy"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(f"another call works on {path}", fix="try again", path=path)


class FileTooLarge(KagedError):
    """The file is larger than the call can take."""

    code = "file_too_large"

    def __init__(self, path: str, size: int, limit: int) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} has {size} bytes, the limit here is {limit}",
            fix="look into it with search.grep or a shell command",
            path=path,
            size=size,
            limit=limit,
        )


class FileUnreadable(KagedError):
    """The system did not let us read it."""

    code = "file_unreadable"

    def __init__(self, path: str, reason: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} could not be read: {reason}", fix="check its permissions", path=path
        )


class FileWriteFailed(KagedError):
    """The system did not let us write; everything is as it was before."""

    code = "file_write_failed"

    def __init__(self, path: str, reason: str, **data: JsonValue) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} could not be written: {reason}",
            code=self.code,
            fix="check free space and permissions; nothing was changed",
            path=path,
            **data,
        )


class RestoreFailed(KagedError):
    """A change of several files failed half way and not every file could be put back.

    `left` lists the files that are not as they were, each with the name its old content has now.
    """

    code = "file_restore_failed"


class ProjectRootInvalid(KagedError):
    """The project's directory is not there, or no directory."""

    code = "project_root_invalid"


class UndoNotFound(KagedError):
    """There is nothing of that kind to undo, or not any more."""

    code = "undo_not_found"


class UndoConflict(KagedError):
    """Files were changed since, so that an undo would destroy something; nothing was changed."""

    code = "undo_conflict"


def _shortened(path: str) -> str:
    return sendable(path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}…")
