"""`Flow`: a pending flow with its secrets opened, and how it is kept and shown."""

from __future__ import annotations

import secrets
from dataclasses import field, fields
from typing import Final

import msgspec

from kaged.base import Clock, JsonObject, JsonValue, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.services.contract import AuthField, FlowStarter
from kaged.services.known_secrets import secret_texts
from kaged.store.service_rows import FlowRow

NOTED_LIMIT: Final = 2000
LEEWAY_MS: Final = 60_000
"""How far a clock may be set back, as time servers do, without ending flows just begun."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A pending flow. Everything but `row` lies encrypted in the database.

    The address too: whoever has that of a page could complete the flow with another account.
    `begun_by` names everybody who asked for it, since those who ask for the same share one flow.
    """

    row: FlowRow
    auth_url: str = field(repr=False)
    user_code: str | None = field(repr=False)
    flow_state: JsonObject = field(repr=False)
    expected_state: str | None = field(repr=False)
    uses_pkce: bool
    redirect_uri: str | None
    fields: tuple[AuthField, ...] = ()
    begun_by: tuple[FlowStarter, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that no message may repeat."""
        state = () if self.expected_state is None else (self.expected_state,)
        return (*secret_texts(self.flow_state), *state)


class FlowEnds:
    """When flows end, by the wall clock and by one that nobody can set.

    A flow whose time was over stays so when the wall clock is set back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_s: dict[str, float] = {}

    def note(self, row: FlowRow) -> None:
        """Let a flow end after the time that it has left, whatever becomes of the wall clock."""
        left_s = (row.expires_at_ms - self._clock.now_ms()) / 1000
        self._ends_s.setdefault(row.flow_id, self._clock.monotonic_s() + left_s)
        while len(self._ends_s) > NOTED_LIMIT:
            self._ends_s.pop(next(iter(self._ends_s)))

    def is_over(self, row: FlowRow) -> bool:
        """Return whether the time of a flow is over, or cannot be told."""
        now_ms = self._clock.now_ms()
        if row.flow_id not in self._ends_s and row.created_at_ms - now_ms > LEEWAY_MS:
            # Begun later than now by a daemon before this one: nobody knows how long ago.
            return True
        self.note(row)
        ends_s = self._ends_s[row.flow_id]
        return now_ms >= row.expires_at_ms or self._clock.monotonic_s() >= ends_s

    def forget(self, flow_id: str) -> None:
        """Forget a flow that has ended."""
        self._ends_s.pop(flow_id, None)


def hidden_of(flow: Flow) -> bytes:
    """Write everything of a flow that is kept encrypted."""
    return msgspec.json.encode({name: getattr(flow, name) for name in _HIDDEN})


def flow_of(row: FlowRow, hidden: bytes) -> Flow:
    """Return a stored flow from its row and what was encrypted in it."""
    known = msgspec.json.decode(hidden)
    asked = tuple(AuthField(**one) for one in known.pop("fields"))
    # Flows of earlier versions do not say who began them.
    starters = tuple(FlowStarter(*one) for one in known.pop("begun_by", ()))
    return Flow(row, **known, fields=asked, begun_by=starters)


def flow_binding(row: FlowRow) -> tuple[str, ...]:
    """Return what the encrypted part of a flow is bound to."""
    return ("flow", row.flow_id, row.user_id, row.capability_id)


def new_flow_id() -> str:
    """Make the handle of a flow: 128 bits of the system's own generator."""
    return f"caf_{secrets.token_hex(16)}"


def asked_json(flow: Flow) -> JsonObject:
    """Describe a flow to the person who completes it: all keys, and the fields to fill in."""
    asked: list[JsonValue] = [
        {"name": one.name, "label": one.label, "secret": one.secret} for one in flow.fields
    ]
    absent: JsonObject = {"user_code": None, "poll_interval_seconds": None}
    return {**absent, **flow_json(flow), "fields": asked}


def flow_json(flow: Flow) -> JsonObject:
    """Describe a flow to the sandbox: where to go, until when; nothing that completes it."""
    row = flow.row
    shown: JsonObject = {
        "flow_id": row.flow_id,
        "capability": row.capability_id,
        "account_hint": row.account_hint,
        "auth_url": flow.auth_url,
        "expires_at": iso_utc(row.expires_at_ms),
        "flow_type": row.flow_type,
    }
    if flow.user_code is not None:
        shown["user_code"] = flow.user_code
    if row.poll_interval_s is not None:
        shown["poll_interval_seconds"] = row.poll_interval_s
    return shown


_HIDDEN: Final = tuple(one.name for one in fields(Flow) if one.name != "row")
