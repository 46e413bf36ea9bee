"""`AuditFilter`: which rows a reader wants to see."""

from __future__ import annotations

from collections.abc import Iterable

from kaged.audit.row import AuditRow
from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass

NAMES_LIMIT = 50
TEXT_LIMIT_CHARS = 200


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows a reader wants; every part that is given must fit.

    `names` are event names, or a prefix with a star behind a dot: `plugin.*`. Times are wall
    clock, `since_ms` included and `until_ms` excluded. `text` is looked for in names and data,
    without regard to case. `after_seq` is for readers that follow the log.
    """

    names: tuple[str, ...] = ()
    project_id: str | None = None
    request_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str = ""
    after_seq: int = 0

    def __post_init__(self) -> None:
        """Refuse what no query should be made of."""
        if len(self.names) > NAMES_LIMIT:
            raise ValueError(f"at most {NAMES_LIMIT} names")
        for name in self.names:
            if not name or ("*" in name.removesuffix(".*") and name != "*"):
                raise ValueError(f"{name!r} is neither an event name nor a prefix such as plugin.*")
        if len(self.text) > TEXT_LIMIT_CHARS:
            raise ValueError(f"at most {TEXT_LIMIT_CHARS} characters of text")

    @property
    def everything(self) -> bool:
        """Whether no row is left out."""
        return self == AuditFilter()

    def matches(self, row: AuditRow) -> bool:
        """Return whether the row is wanted; for rows that arrive live."""
        return (
            row.seq > self.after_seq
            and (not self.names or _named(row.name, self.names))
            and (self.project_id is None or row.project_id == self.project_id)
            and (self.request_id is None or row.request_id == self.request_id)
            and (self.since_ms is None or row.ts_ms >= self.since_ms)
            and (self.until_ms is None or row.ts_ms < self.until_ms)
            and (not self.text or self.text.lower() in f"{row.name}\n{row.data_json}".lower())
        )

    def to_json(self) -> JsonObject:
        """Return the parts that are set, by name."""
        parts: JsonObject = {
            "names": list(self.names),
            "project_id": self.project_id,
            "request_id": self.request_id,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "text": self.text,
            "after_seq": self.after_seq,
        }
        return {name: value for name, value in parts.items() if value}


def _named(name: str, patterns: Iterable[str]) -> bool:
    return any(
        pattern in {name, "*"} or (pattern.endswith(".*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )
