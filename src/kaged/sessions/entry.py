"""`Entry`: one link of a session's append-only chain."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass


class EntryKind(StrEnum):
    """What an entry records. A session's first entry is its header."""

    HEADER = "header"
    MESSAGE = "message"
    THINKING_LEVEL_CHANGE = "thinking_level_change"
    MODEL_CHANGE = "model_change"
    COMPACTION = "compaction"
    LABEL = "label"
    TITLE = "title"
    CUSTOM = "custom"


class EntryRole(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"


@dataclass(frozen=True, slots=True)
class EntryDraft:
    """An entry that is about to be appended.

    `agent` is the path of the agent in whose window a message stands. `content` is a list of
    blocks (`text`, `thinking`, `tool_call`, `tool_result_block`, `custom`) under `content`, or the
    fields of the other kinds.
    """

    kind: EntryKind
    content: JsonObject
    role: EntryRole | None = None
    agent: str = "primary"
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as stored. Ids are monotonic ULIDs: they sort in the order of appending."""

    id: str
    session_id: str  # the session that appended it; a fork shows entries of its ancestors
    kind: EntryKind
    role: EntryRole | None
    agent: str
    run_id: str | None
    ts_ms: int
    superseded_by: str | None = None  # the compaction entry that took it out of the window
    content: JsonObject = field(default_factory=dict)
