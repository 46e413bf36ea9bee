"""`ProbeRow`: one line of `kaged doctor` about cages."""

from __future__ import annotations

from enum import StrEnum

from kaged.base.lazy_dataclass import dataclass


class Status(StrEnum):
    """Whether a promise holds: yes, in a weaker form, or not at all."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """What was tried, what it protects, how it came out, and the one command that would help."""

    id: str
    status: Status
    protects: str
    detail: str
    fix: str = ""

    @classmethod
    def ok(cls, row: str, protects: str, detail: str) -> ProbeRow:
        """Return a row for a promise that holds."""
        return cls(row, Status.OK, protects, detail)

    @classmethod
    def warn(cls, row: str, protects: str, detail: str, fix: str = "") -> ProbeRow:
        """Return a row for a promise that holds in a weaker form."""
        return cls(row, Status.WARN, protects, detail, fix)

    @classmethod
    def fail(cls, row: str, protects: str, detail: str, fix: str = "") -> ProbeRow:
        """Return a row for a check without which cages do not start."""
        return cls(row, Status.FAIL, protects, detail, fix)
