"""`UndoStep`: one tool call that changed files, with the contents that they had before."""

from __future__ import annotations

from kaged.base import JsonObject, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.workspace.batch import Written


@dataclass(frozen=True, slots=True)
class Author:
    """On whose behalf a file was changed."""

    session_id: str
    run_id: str
    caller: str
    tool_name: str


@dataclass(frozen=True, slots=True)
class UndoStep:
    """One tool call that changed files."""

    number: int
    author: Author
    ts_ms: int
    files: tuple[Written, ...]

    @property
    def kept_bytes(self) -> int:
        """How much old content the step holds."""
        return sum(len(one.before) for one in self.files if one.before is not None)

    def as_json(self) -> JsonObject:
        """Return the step as shown to an operator, without contents."""
        return {
            "step": self.number,
            "time": iso_utc(self.ts_ms),
            "session_id": self.author.session_id,
            "run_id": self.author.run_id,
            "caller": self.author.caller,
            "tool_name": self.author.tool_name,
            "files": [
                {"path": one.path.relative, "change": _change(one), "undoable": was_kept(one)}
                for one in self.files
            ],
        }


def was_kept(one: Written) -> bool:
    """Return whether what was there before is at hand: nothing, or a content."""
    return one.created or one.before is not None


def _change(one: Written) -> str:
    if one.sha256 is None:
        return "deleted"
    return "created" if one.created else "changed"
