"""`QueuedRequests`: what others than people want of a session, done between two of its turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass

MAX_SESSIONS: Final = 1000
MAX_QUEUED: Final = 16
MAX_IN_A_ROW: Final = 10
"""How many messages a session takes that no person wrote, before one of a person's comes."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message for a session. With `trigger` it starts a run where none is under way."""

    text: str
    asked_by: str
    trigger: bool = True


class QueuedRequests:
    """Messages and compactions that wait for the end of a turn. Lost when the daemon ends."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, list[QueuedMessage]] = OrderedDict()
        self._compactions: OrderedDict[str, str | None] = OrderedDict()
        self._in_a_row: OrderedDict[str, int] = OrderedDict()

    def say(self, session_id: str, message: QueuedMessage) -> None:
        """Queue a message. Raises `quota_exceeded`."""
        count = self._in_a_row.get(session_id, 0) + 1
        queued = self._messages.setdefault(session_id, [])
        if count > MAX_IN_A_ROW or len(queued) >= MAX_QUEUED:
            raise KagedError(
                f"This session takes no more than {MAX_IN_A_ROW} messages in a row that no person "
                f"wrote, and {MAX_QUEUED} at a time.",
                code="quota_exceeded",
                fix="send a message yourself to let it go on",
            )
        self._in_a_row[session_id] = count
        queued.append(message)
        for table in (self._messages, self._in_a_row):
            while len(table) > MAX_SESSIONS:
                table.popitem(last=False)

    def ask_compaction(self, session_id: str, instruction: str | None) -> None:
        """Ask for a compaction; one that waits already is replaced."""
        self._compactions[session_id] = instruction
        while len(self._compactions) > MAX_SESSIONS:
            self._compactions.popitem(last=False)

    def person_spoke(self, session_id: str) -> None:
        """Begin to count anew: somebody looks after the session."""
        self._in_a_row.pop(session_id, None)

    def starts_run(self, session_id: str) -> bool:
        """Return whether something waits that would start a run."""
        return any(one.trigger for one in self._messages.get(session_id, ()))

    def waits(self, session_id: str) -> bool:
        """Return whether there is something to do without a person's message."""
        return session_id in self._compactions or self.starts_run(session_id)

    def forget(self, session_id: str) -> None:
        """Drop what waits: somebody stopped the session."""
        self._messages.pop(session_id, None)
        self._compactions.pop(session_id, None)

    def take_last(self, session_id: str) -> QueuedMessage:
        """Return the message that waits last, and forget it; those before it stay."""
        return self._messages[session_id].pop()

    def take_messages(self, session_id: str) -> Sequence[QueuedMessage]:
        """Return what waits, and forget it."""
        return self._messages.pop(session_id, [])

    def take_compaction(self, session_id: str) -> tuple[str | None] | None:
        """Return the instruction of a compaction that waits, and forget it."""
        if session_id not in self._compactions:
            return None
        return (self._compactions.pop(session_id),)
