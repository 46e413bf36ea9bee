"""What the gate puts on record of requests: `RequestEvent`, and `RequestLog`, which folds them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.net.events import shown_host
from kaged.kernel.bindings import PLACEHOLDER, PLACEHOLDER_PREFIX

USED: Final = "credential.used"
REFUSED: Final = "credential.refused"
CLIENT_REFUSED: Final = "credential.client_refused_certificate"
_WINDOW_S: Final = 10.0
_DISTINCT: Final = 64
_TEXT: Final = 255
_PLACEHOLDERS = re.compile(PLACEHOLDER.pattern, re.IGNORECASE)
_SHOWN: Final = f"{PLACEHOLDER_PREFIX}..."


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request to a bound host, or several equal ones. It never holds a value or a query's value.

    `outcome` is the server's status, or what went wrong; `rule` says why a refused one was refused.
    """

    name: str
    cage: str
    cage_id: str
    host: str
    port: int
    method: str
    path: str
    credential: str
    outcome: str
    rule: str = ""
    reason: str = ""
    count: int = 1

    def data(self) -> JsonObject:
        """Return the event's fields for the audit log."""
        common: JsonObject = {
            "what": self.cage,
            "cage_id": self.cage_id,
            "host": self.host,
            "port": self.port,
            "count": self.count,
        }
        if self.name == CLIENT_REFUSED:
            return common | {"reason": self.reason}
        common |= {"method": self.method, "path": self.path, "name": self.credential}
        if self.name == REFUSED:
            return common | {"rule": self.rule, "reason": self.reason}
        return common | {"outcome": self.outcome}


RecordRequest: TypeAlias = Callable[[RequestEvent], None]


class RequestLog:
    """Records the requests of one cage; equal ones within a window are counted.

    The first of a kind is sent at once, and so is the count of the others when the window is over.
    Beyond a number of kinds only their sum is sent, so a cage fills no log.
    """

    def __init__(self, cage: str, record: RecordRequest, clock: Clock) -> None:
        self.cage_id = ""  # known when the first connection comes
        self._cage = cage
        self._record = record
        self._clock = clock
        self._ends_s = 0.0
        self._held: dict[RequestEvent, int] = {}
        self._others: dict[str, RequestEvent] = {}

    def used(
        self, host: str, port: int, method: str, path: str, credential: str, outcome: str
    ) -> None:
        """Record a request that was sent."""
        self._add(self._event(USED, host, port, method, path, credential, outcome=outcome))

    def refused(
        self,
        host: str,
        port: int,
        method: str,
        path: str,
        credential: str,
        *,
        rule: str,
        reason: str,
    ) -> None:
        """Record a request that was not sent."""
        event = self._event(REFUSED, host, port, method, path, credential, outcome="refused")
        self._add(replace(event, rule=rule, reason=reason[:_TEXT]))

    def client_refused(self, host: str, port: int, reason: str) -> None:
        """Record that a program did not accept the gate's certificate."""
        event = self._event(CLIENT_REFUSED, host, port, "", "", "", outcome="refused")
        self._add(replace(event, reason=reason[:_TEXT]))

    def flush(self) -> None:
        """Send what was only counted so far."""
        for event, count in self._held.items():
            if count:
                self._record(replace(event, count=count))
        for event in self._others.values():
            self._record(event)
        self._held.clear()
        self._others.clear()

    def _event(
        self,
        name: str,
        host: str,
        port: int,
        method: str,
        path: str,
        credential: str,
        *,
        outcome: str,
    ) -> RequestEvent:
        return RequestEvent(
            name,
            self._cage,
            self.cage_id,
            host,
            port,
            shown_host(method[:32]),
            shown_host(_PLACEHOLDERS.sub(_SHOWN, path)),
            credential,
            outcome,
        )

    def _add(self, event: RequestEvent) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._ends_s:
            self.flush()
            self._ends_s = now_s + _WINDOW_S
        if event in self._held:
            self._held[event] += 1
        elif len(self._held) < _DISTINCT:
            self._held[event] = 0
            self._record(event)
        else:
            before = self._others.get(event.name)
            self._others[event.name] = replace(
                event,
                host="",
                port=0,
                method="",
                path="",
                credential="",
                rule="",
                reason="further requests of other kinds",
                count=before.count + 1 if before else 1,
            )
