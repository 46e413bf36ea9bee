"""`FoldingGate`: a guest that causes more events than its share has the rest counted, not written.

For each guest and kind of event the first hundred are written, then one in ten seconds. Everything
beyond is counted, exactly, and becomes one `audit.folded` event: how many, from when to when, and
of what. So a guest cannot fill the disk, hide its traces under noise or use up the log's queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from kaged.audit.event import AuditEvent
from kaged.audit.events.causes import CAUSES, CauseKind, EventCause
from kaged.base import Clock, JsonObject, JsonValue, iso_utc
from kaged.base.lazy_dataclass import dataclass

OTHERS: Final = "(others)"
VALUE_CHARS: Final = 200

_Key: TypeAlias = tuple[str, str | None, str]  # kind, project, guest
_Detail: TypeAlias = tuple[JsonValue, ...]


@dataclass(frozen=True, slots=True)
class FoldingLimits:
    """How many events of one kind a guest may cause before they are counted.

    `details` is how many different ones are told apart, each with a first row of its own;
    `guests` how many guests and kinds are remembered, the rest share what is left.
    """

    burst: int = 100
    per_s: float = 0.1
    details: int = 64
    guests: int = 1024


class _Count:
    """What was counted of one detail."""

    __slots__ = ("count", "first_ms", "last_ms", "sums")

    def __init__(self) -> None:
        self.count = 0
        self.first_ms = self.last_ms = 0
        self.sums: dict[str, int] = {}

    def add(self, count: int, first_ms: int, last_ms: int, sums: Iterable[tuple[str, int]]) -> None:
        self.first_ms = min(self.first_ms, first_ms) if self.count else first_ms
        self.last_ms = max(self.last_ms, last_ms)
        self.count += count
        for name, value in sums:
            self.sums[name] = self.sums.get(name, 0) + value


class _Share:
    """What one guest has left of one kind of event."""

    __slots__ = ("counts", "folded", "refilled_s", "tokens")

    def __init__(self, tokens: float, now_s: float) -> None:
        self.tokens = tokens
        self.refilled_s = now_s
        self.counts: dict[_Detail, _Count] = {}
        self.folded = 0


class FoldingGate:
    """Decides which events of guests are written and counts the others; safe in any thread."""

    def __init__(
        self,
        clock: Clock,
        began: Callable[[], None] = lambda: None,
        limits: FoldingLimits | None = None,
    ) -> None:
        self._clock = clock
        self._began = began
        self._limits = limits or FoldingLimits()
        self._lock = threading.Lock()
        self._shares: dict[_Key, _Share] = {}
        self._folding: set[_Key] = set()
        self._closed = False

    def fold(self, event: AuditEvent, guest: str | None = None) -> bool:
        """Return whether an event is counted instead of written: its guest's share is used up.

        `guest` names the guest where the event's fields do not.
        """
        cause = CAUSES[event.name]
        if self._closed or not _is_folded(cause, event):
            return False
        with self._lock:
            key, share = self._share(event, cause, guest)
            if self._spend(share, detail := _values(event, cause.detail)):
                return False
            began = self._add(key, share, detail, event, cause)
        if began:
            self._began()
        return True

    def spend(self, event: AuditEvent, guest: str | None = None) -> None:
        """Take an event that is written in any case from its guest's share."""
        cause = CAUSES[event.name]
        with self._lock:
            self._spend(self._share(event, cause, guest)[1], _values(event, cause.detail))

    def count(self, event: AuditEvent, guest: str | None = None) -> None:
        """Count an event that is not written, whatever its guest has left."""
        cause = CAUSES[event.name]
        with self._lock:
            key, share = self._share(event, cause, guest)
            began = self._add(key, share, _values(event, cause.detail), event, cause)
        if began:
            self._began()

    def close(self) -> None:
        """Count nothing any more: nobody would write it."""
        self._closed = True

    def is_used_up(self, name: str, project_id: str | None, guest: str) -> bool:
        """Return whether a further event of this kind and guest would be counted."""
        share = self._shares.get((name, project_id, guest))
        if share is None or self._closed:
            return False
        with self._lock:
            self._refill(share)
            return share.tokens < 1

    @property
    def has_folded(self) -> bool:
        """Whether something is counted and not written."""
        return bool(self._folding)

    def drain(self, write: Callable[[AuditEvent], bool]) -> None:
        """Hand what was counted to `write`, one event for each guest and kind.

        What `write` does not take stays counted.
        """
        with self._lock:
            taken: list[tuple[_Key, dict[_Detail, _Count]]] = []
            for key in self._folding:
                share = self._shares[key]
                folded = {detail: one for detail, one in share.counts.items() if one.count}
                # The details stay known: they have had their first row.
                share.counts = {detail: _Count() for detail in share.counts}
                share.folded = 0
                taken.append((key, folded))
            self._folding.clear()
        for number, (key, folded) in enumerate(taken):
            if not write(_summary(key, folded)):
                self._put_back(taken[number:])
                return

    def _share(
        self, event: AuditEvent, cause: EventCause, guest: str | None
    ) -> tuple[_Key, _Share]:
        named = _guest_of(event, cause) if guest is None else guest
        key: _Key = (event.name, event.project_id, named)
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= self._limits.guests:
                self._forget()
            if len(self._shares) >= self._limits.guests:
                key = (event.name, None, OTHERS)
            share = self._shares.get(key)
            if share is None:
                now_s = self._clock.monotonic_s()
                share = self._shares[key] = _Share(float(self._limits.burst), now_s)
        self._refill(share)
        return key, share

    def _spend(self, share: _Share, detail: _Detail) -> bool:
        """Return whether an event may be written; the first of its detail always may."""
        if detail not in share.counts and len(share.counts) < self._limits.details:
            share.counts[detail] = _Count()
        elif share.tokens < 1:
            return False
        share.tokens = max(share.tokens - 1, 0.0)
        return True

    def _refill(self, share: _Share) -> None:
        now_s = self._clock.monotonic_s()
        gained = (now_s - share.refilled_s) * self._limits.per_s
        share.refilled_s = now_s
        share.tokens = min(share.tokens + gained, float(self._limits.burst))
        if share.tokens >= self._limits.burst and not share.folded:
            share.counts.clear()

    def _add(
        self, key: _Key, share: _Share, detail: _Detail, event: AuditEvent, cause: EventCause
    ) -> bool:
        """Count one; return whether it is the first since everything was written."""
        if detail not in share.counts and len(share.counts) >= self._limits.details:
            detail = ()
        now_ms = self._clock.now_ms()
        counted = share.counts.setdefault(detail, _Count())
        counted.add(1, now_ms, now_ms, _numbers(event, cause))
        share.folded += 1
        began = not self._folding
        self._folding.add(key)
        return began

    def _put_back(self, taken: list[tuple[_Key, dict[_Detail, _Count]]]) -> None:
        with self._lock:
            for key, folded in taken:
                share = self._shares.get(key)
                if share is None:
                    share = self._shares[key] = _Share(0.0, self._clock.monotonic_s())
                for detail, one in folded.items():
                    known = share.counts.setdefault(detail, _Count())
                    known.add(one.count, one.first_ms, one.last_ms, one.sums.items())
                    share.folded += one.count
                self._folding.add(key)

    def _forget(self) -> None:
        """Forget guests that have their whole share and nothing counted."""
        for key, share in list(self._shares.items()):
            self._refill(share)
            if share.tokens >= self._limits.burst and not share.folded:
                del self._shares[key]


def _guest_of(event: AuditEvent, cause: EventCause) -> str:
    """Return the guest that caused an event, as one text."""
    values = [event.data.get(name) for name in cause.guest]
    return " ".join(str(one)[:VALUE_CHARS] for one in values if one is not None)


def _is_folded(cause: EventCause, event: AuditEvent) -> bool:
    if cause.kind not in (CauseKind.GUEST, CauseKind.CALL):
        return False
    return cause.only is None or event.data.get(cause.only[0]) == cause.only[1]


def _values(event: AuditEvent, names: tuple[str, ...]) -> _Detail:
    found: list[JsonValue] = []
    for name in names:
        value = event.data.get(name)
        found.append(value[:VALUE_CHARS] if isinstance(value, str) else _plain(value))
    return tuple(found)


def _plain(value: JsonValue) -> JsonValue:
    return value if isinstance(value, int) or value is None else str(value)[:VALUE_CHARS]


def _numbers(event: AuditEvent, cause: EventCause) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name in cause.sums:
        value = event.data.get(name)
        if isinstance(value, int):
            found.append((name, value))
    return found


def _summary(key: _Key, folded: dict[_Detail, _Count]) -> AuditEvent:
    name, project_id, guest = key
    fields = CAUSES[name].detail
    details: list[JsonValue] = []
    for detail, one in folded.items():
        # Without values: those beyond as many as are told apart.
        told: JsonObject = dict(zip(fields, detail, strict=False))
        details.append({**told, "count": one.count, **({"sums": {**one.sums}} if one.sums else {})})
    counts = folded.values()
    return AuditEvent(
        "audit.folded",
        {
            "kind": name,
            "guest": guest,
            "count": sum(one.count for one in counts),
            "first_at": iso_utc(min(one.first_ms for one in counts)),
            "last_at": iso_utc(max(one.last_ms for one in counts)),
            "details": details,
        },
        project_id=project_id,
    )
