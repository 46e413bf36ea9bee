"""Exit codes: `Exit`, and which error code leads to which of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class Exit(IntEnum):
    """How a command ended. The numbers are part of the interface (docs/reference/cli.md)."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNREACHABLE = 5
    INVALID = 6
    CONFLICT = 7
    FINDINGS = 8
    WAITING = 9
    INTERRUPTED = 130


MEANINGS: Final[Mapping[Exit, str]] = MappingProxyType(
    {
        Exit.OK: "success",
        Exit.ERROR: "an error without an exit code of its own",
        Exit.USAGE: "the command line is not valid",
        Exit.NOT_FOUND: "not found: a project, a file, an event",
        Exit.DENIED: "not allowed",
        Exit.UNREACHABLE: "no daemon is running, and none could be started",
        Exit.INVALID: "a file or a value is not valid",
        Exit.CONFLICT: "a conflict: another daemon, a port in use",
        Exit.FINDINGS: "a check found a problem",
        Exit.WAITING: "an agent is waiting for your answer",
        Exit.INTERRUPTED: "interrupted",
    }
)

_BY_CODE: Final[Mapping[str, Exit]] = MappingProxyType(
    {
        "not_found": Exit.NOT_FOUND,
        "unauthenticated": Exit.DENIED,
        "launch_token_invalid": Exit.DENIED,
        "not_signed_in": Exit.DENIED,
        "sign_in_unavailable": Exit.UNREACHABLE,
        "daemon_unreachable": Exit.UNREACHABLE,
        "daemon_start_failed": Exit.UNREACHABLE,
        "daemon_stopping": Exit.UNREACHABLE,
        "daemon_running": Exit.CONFLICT,
        "port_in_use": Exit.CONFLICT,
        "tcp_disabled": Exit.CONFLICT,
        "session_busy": Exit.CONFLICT,
        "session_ambiguous": Exit.CONFLICT,
        "entry_ambiguous": Exit.CONFLICT,
        "session_move_vetoed": Exit.DENIED,
    }
)
_BY_ENDING: Final = (
    ("_not_found", Exit.NOT_FOUND),
    ("_denied", Exit.DENIED),
    ("_invalid", Exit.INVALID),
    ("_exists", Exit.CONFLICT),
    ("_refused", Exit.DENIED),
)


def exit_of(code: str) -> Exit:
    """Return the exit code for an error code; what has no entry is a plain error."""
    known = _BY_CODE.get(code)
    if known is not None:
        return known
    if code.startswith("invalid_"):
        return Exit.INVALID
    return next((found for ending, found in _BY_ENDING if code.endswith(ending)), Exit.ERROR)
