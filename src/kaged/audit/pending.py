"""`PendingEvent`: an event between the moment it was recorded and the one in which it is written.

Whoever records an event should not wait while it is looked through for secrets. What could still
change is copied at once, and the looking is done by the thread that writes.
"""

from __future__ import annotations

import asyncio
import marshal
from typing import Any, Final, TypeAlias

import msgspec

from kaged.audit.event import AuditEvent
from kaged.audit.redact import Rules
from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger

OVERHEAD_CHARS: Final = 128  # what an entry of the queue weighs beside its text
# Larger ones are redacted where they are recorded: what they leave is small, and the queue would
# have room for few of them.
COPY_LIMIT_CHARS: Final = 16 * 1024

_MEMBER_CHARS: Final = 16
_FIXED: Final = frozenset({str, int, float, bool, type(None)})

Texts: TypeAlias = "tuple[str | None, str | None, str]"
"""What is kept of an event, redacted: its project, its request, its data as JSON."""

_Held: TypeAlias = "JsonObject | list[JsonValue] | bytes"

_log = get_logger(__name__)


class PendingEvent:
    """An event that waits to be written, as it was when it was recorded.

    With a `waiter` someone waits until it is durable. `rules` are those of the moment it was
    recorded in. Without an event it is a mark in the queue, for `flush`, and has no `name`.
    """

    __slots__ = ("_event", "_held", "_rules", "_texts", "name", "size", "ts_ms", "waiter")

    def __init__(self, event: AuditEvent | None, ts_ms: int, rules: Rules) -> None:
        self.ts_ms = ts_ms
        self.waiter: asyncio.Future[None] | None = None
        self.size = OVERHEAD_CHARS
        self._event = event
        self._rules = rules
        self._texts: Texts | None = None
        # The values that might change, each as a copy of its own or as the bytes of `marshal`.
        self._held: dict[str, _Held] | None = None
        if event is None:
            self.name = ""
            return
        self.name = event.name
        data, (texts, holders) = event.data, event.shape
        size = OVERHEAD_CHARS
        for name in texts:
            size += len(data[name])  # type: ignore[arg-type]  # a text, says its shape
        self.size = size
        if size > COPY_LIMIT_CHARS or (holders and not self._hold(holders, data)):
            self.size = OVERHEAD_CHARS + len(self.texts()[2])

    def texts(self) -> Texts:
        """Return what is kept of the event; computed once."""
        if self._texts is None:
            assert self._event is not None
            self._texts = _redacted(self._event, self._held, self._rules)
            self._event = self._held = None
        return self._texts

    def _hold(self, holders: tuple[str, ...], data: JsonObject) -> bool:
        """Copy what whoever recorded the event may still change; False if that cannot be done.

        The copy is as exact as the value is plain: what is no bare list, object, text or number is
        no business of `marshal`, and is redacted at once.
        """
        for name in holders:
            value = data[name]
            if type(value) is dict and (chars := _flat_chars(value)) is not None:
                copy: _Held = value.copy()
                self.size += chars
            elif type(value) is list and _FIXED.issuperset(map(type, value)):
                copy = value.copy()
                self.size += sum([len(one) for one in value if type(one) is str])
                self.size += _MEMBER_CHARS * len(value)
            else:
                try:
                    copy = marshal.dumps(value)
                except ValueError:
                    return False
                self.size += len(copy)
            if self.size > COPY_LIMIT_CHARS:
                return False
            if self._held is None:
                self._held = {name: copy}
            else:
                self._held[name] = copy
        return True


def _flat_chars(value: JsonObject) -> int | None:
    """Weigh an object in which nothing can change; None if something in it can."""
    chars = 0
    for key, member in value.items():
        kind = type(member)
        if kind is str:
            chars += len(member)  # type: ignore[arg-type]  # a text
        elif kind not in _FIXED:
            return None
        chars += _MEMBER_CHARS + len(key) if type(key) is str else _MEMBER_CHARS
    return chars


def _redacted(event: AuditEvent, held: dict[str, _Held] | None, rules: Rules) -> Texts:
    try:
        data: dict[str, Any] = event.data
        if held is not None:
            data = {**data, **held}
            for name, copy in held.items():
                if type(copy) is bytes:
                    data[name] = marshal.loads(copy)  # noqa: S302 - made above, never left here
        return (
            rules.short(event.project_id),
            rules.short(event.request_id),
            rules.encode(event.type, data),
        )
    # Boundary: one event that nobody can read must not keep all others from being written.
    except Exception as error:  # noqa: BLE001 - see above
        _log.error("audit.event_not_redacted", audit_event=event.name, error=repr(error))
        kept = msgspec.json.encode({"unreadable": type(error).__name__})
        return None, None, kept.decode()
