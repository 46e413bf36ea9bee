"""`Window`: what one agent has in mind, put together from its entries and kept up to date. Pure.

The newest compaction is where a window begins: its `messages` stand for everything before it,
each either a message of its own or a reference `{"entry": id}` to one that was kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kaged.base import JsonObject, JsonValue
from kaged.sessions.entry import Entry, EntryKind
from kaged.sessions.messages import (
    NOTE_MARK,
    AskedCall,
    WindowMessage,
    message_of_entry,
    message_of_json,
    open_calls,
)


class Window:
    """The messages of one agent, oldest first, with a running estimate of their tokens."""

    __slots__ = ("messages", "tokens")

    def __init__(self, messages: Iterable[WindowMessage] = ()) -> None:
        self.messages: list[WindowMessage] = []
        self.tokens = 0
        self.replace(messages)

    def add(self, entries: Iterable[Entry]) -> None:
        """Take in entries that were appended just now; those that are no messages are passed by."""
        for entry in entries:
            if entry.kind is EntryKind.MESSAGE:
                message = message_of_entry(entry)
                self.messages.append(message)
                self.tokens += message.tokens

    def replace(self, messages: Iterable[WindowMessage]) -> None:
        """Go on with other messages, as after a compaction."""
        self.messages[:] = messages
        self.tokens = sum(one.tokens for one in self.messages)

    def open_calls(self) -> tuple[AskedCall, ...]:
        """Return the calls without a result."""
        return open_calls(self.messages)


def load_window(entries: Sequence[Entry]) -> Window:
    """Build a window from the entries of one agent that no compaction took out, in their order."""
    by_id: dict[str, WindowMessage] = {}
    listed: list[WindowMessage] = []
    for entry in entries:
        if entry.kind is EntryKind.MESSAGE:
            message = message_of_entry(entry)
            by_id[message.id] = message
            listed.append(message)
        elif entry.kind is EntryKind.COMPACTION:
            fresh = _base(entry, by_id)
            if fresh is not None:
                listed = fresh
                by_id.update((message.id, message) for message in fresh)
    return Window(listed)


def compaction_messages(
    messages: Sequence[WindowMessage], known: Iterable[WindowMessage], superseded: Iterable[str]
) -> list[JsonValue]:
    """Write what a compaction leaves: messages that stay in the store by reference, others whole.

    A message that is marked superseded, or that a compactor changed, is written whole.
    """
    taken_out = frozenset(superseded)
    by_id = {message.id: message for message in known}
    written: list[JsonValue] = []
    for message in messages:
        kept = by_id.get(message.id) == message and message.id not in taken_out
        # Messages of an earlier compaction have no entry of their own to refer to.
        whole = not kept or not message.stored
        written.append(message.as_json() if whole else {"entry": message.id})
    return written


def _base(entry: Entry, by_id: dict[str, WindowMessage]) -> list[WindowMessage] | None:
    """Read the messages of a compaction; None for one that carries none."""
    given = entry.content.get("messages")
    if not isinstance(given, list):
        return None
    found: list[WindowMessage] = []
    for number, one in enumerate(given):
        if not isinstance(one, dict):
            continue
        message = _kept(one, by_id) or message_of_json(one, f"{entry.id}{NOTE_MARK}{number}")
        if message is not None:
            found.append(message)
    return found


def _kept(one: JsonObject, by_id: dict[str, WindowMessage]) -> WindowMessage | None:
    name = one.get("entry")
    return by_id.get(name) if isinstance(name, str) else None
