"""`CheckRow`: one thing that was looked at, and how it came out."""

from __future__ import annotations

from enum import StrEnum

from kaged.base.lazy_dataclass import dataclass


class CheckStatus(StrEnum):
    """How a check came out. `warn` works but protects less; `fail` does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One thing that `kaged doctor` looked at: what it is for, what was found, what to do."""

    id: str
    status: CheckStatus
    what: str
    cause: str
    fix: str = ""
