"""`NetEvent`: what the gate puts on record; `Recorder` writes for one cage, floods kept short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass

MAX_HOST_TEXT = 255


class ConnectVia(StrEnum):
    """How a destination was asked for."""

    DIRECT = "direct"
    CONNECT = "connect"
    SOCKS5 = "socks5"
    PROXY = "proxy"  # a proxy conversation that never got as far as a destination
    DNS = "dns"


class ConnectionEnd(StrEnum):
    """How a connection, or the attempt at one, ended."""

    CLOSED = "closed"  # both sides said goodbye
    RESET = "reset"  # one side broke it off
    IDLE = "idle"  # half closed and silent for too long
    CUT = "cut"  # the cage ended
    DENIED = "denied"
    LIMIT = "limit"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    UNKNOWN_HOST = "unknown_host"


@dataclass(frozen=True, slots=True)
class NetEvent:
    """One connection that was let through, or one that was not.

    `cage.net.connected` is sent when a connection has ended, also when a permitted host could not
    be reached; `ending` says which. `cage` names the cage's owner, `cage_id` its policy. `count`
    is above 1 when equal denials were put together. Text in `host` comes from the cage and is
    escaped; `port` is 0 when none was named.
    """

    name: Literal["cage.net.connected", "cage.net.denied"]
    cage: str
    cage_id: str
    via: ConnectVia
    host: str
    port: int
    ending: ConnectionEnd
    address: str = ""
    rule: str = ""
    detail: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    duration_ms: int = 0
    count: int = 1

    def data(self) -> JsonObject:
        """Return the event's fields for the audit log."""
        common: JsonObject = {
            "cage_id": self.cage_id,
            "what": self.cage,
            "protocol": self.via.value,
            "host": self.host,
            "port": self.port,
            "address": self.address or None,
            "outcome": self.ending.value,
        }
        if self.name == "cage.net.denied":
            return common | {"reason": self.detail, "rule": self.rule, "count": self.count}
        return common | {
            "detail": self.detail,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "duration_ms": self.duration_ms,
        }


AuditSink: TypeAlias = Callable[[NetEvent], None]


def shown_host(text: str) -> str:
    """Make text from a cage fit for a record: printable ASCII of bounded length."""
    return ascii(text[:MAX_HOST_TEXT])[1:-1][:MAX_HOST_TEXT]


class DenialLog:
    """Passes denials on, and counts those that repeat instead of repeating them.

    Within one window each distinct denial is sent once at once; further equal ones, and all beyond
    `limit` distinct ones, are sent as counts when the window is over or the log is closed. So a
    cage that hammers at the gate fills neither the audit log nor the daemon's memory.
    """

    def __init__(self, sink: AuditSink, clock: Clock, *, limit: int, window_s: float) -> None:
        self._sink = sink
        self._clock = clock
        self._limit = limit
        self._window_s = window_s
        self._window_end = 0.0
        self._seen: dict[tuple[ConnectVia, str, int, str], NetEvent] = {}
        self._overflow: NetEvent | None = None

    def add(self, event: NetEvent) -> None:
        """Record one denial."""
        now = self._clock.monotonic_s()
        if now >= self._window_end:
            self.flush()
            self._window_end = now + self._window_s
        key = (event.via, event.host, event.port, event.rule)
        held = self._seen.get(key)
        if held is not None:
            self._seen[key] = replace(held, count=held.count + 1)
        elif len(self._seen) < self._limit:
            self._seen[key] = replace(event, count=0)
            self._sink(event)
        else:
            before = self._overflow.count if self._overflow else 0
            self._overflow = replace(
                event,
                host="",
                port=0,
                address="",
                detail="further denials of other destinations",
                count=before + 1,
            )

    def flush(self) -> None:
        """Send what was counted so far."""
        for event in self._seen.values():
            if event.count:
                self._sink(event)
        if self._overflow is not None:
            self._sink(self._overflow)
        self._seen.clear()
        self._overflow = None


class Recorder:
    """Writes the events of one cage."""

    def __init__(
        self, cage: str, cage_id: str, sink: AuditSink, clock: Clock, denials: DenialLog
    ) -> None:
        self.cage_id = cage_id
        self._cage = cage
        self._sink = sink
        self._clock = clock
        self._denials = denials

    def now_s(self) -> float:
        """Return the time to hand to `connected` as the start of a connection."""
        return self._clock.monotonic_s()

    def connected(
        self,
        via: ConnectVia,
        host: str,
        port: int,
        started_s: float,
        ending: ConnectionEnd,
        **more: Any,
    ) -> None:
        """Record a permitted connection that has ended, or never came about."""
        duration_ms = round((self._clock.monotonic_s() - started_s) * 1000)
        self._sink(
            NetEvent(
                "cage.net.connected",
                self._cage,
                self.cage_id,
                via,
                host,
                port,
                ending,
                duration_ms=duration_ms,
                **more,
            )
        )

    def denied(
        self, via: ConnectVia, host: str, port: int, rule: str, detail: str, address: str = ""
    ) -> None:
        """Record something that was asked for and not granted."""
        self._denials.add(
            NetEvent(
                "cage.net.denied",
                self._cage,
                self.cage_id,
                via,
                shown_host(host),
                port,
                ConnectionEnd.DENIED,
                address=address,
                rule=rule,
                detail=detail,
            )
        )

    def over_limit(self, via: ConnectVia, what: str) -> None:
        """Record that a cage used up one of the gate's limits."""
        self._denials.add(
            NetEvent(
                "cage.net.denied",
                self._cage,
                self.cage_id,
                via,
                "",
                0,
                ConnectionEnd.LIMIT,
                rule="net.limit",
                detail=f"the cage has too many {what}",
            )
        )

    def flush(self) -> None:
        """Send what was only counted so far."""
        self._denials.flush()
