"""`MutatingCalls`: a mutating call happens once per key, also across a restart."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Final

import msgspec

from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityError, CapabilityInvalidInput, provider_error
from kaged.store.service_call_rows import CallKey, CallRow, CallStatus, ServiceCallRows

KEPT_S: Final = 24 * 3600
KEY_LIMIT_CHARS: Final = 255
OUTPUT_LIMIT_BYTES: Final = 256 * 1024
CALLS_PER_USER: Final = 10_000
_KEY: Final = re.compile(r"[!-~]+|[^\s\x00-\x1f\x7f]+")


def parse_idempotency_key(value: object) -> str | None:
    """Read a key: 1 to 255 visible characters. None when there is none."""
    if value is None:
        return None
    if isinstance(value, str) and len(value) <= KEY_LIMIT_CHARS:
        if not value.strip():
            return None
        if value.isprintable() and _KEY.fullmatch(value):
            return value
    raise CapabilityInvalidInput("an idempotency key has 1 to 255 visible characters")


@dataclass(frozen=True, slots=True)
class Replay:
    """An earlier call with the same key and input, and what it gave."""

    request_id: str
    output: JsonObject


class KeptRefusal(Exception):
    """An earlier call with the same key and input, and what the provider refused it with."""

    def __init__(self, error: CapabilityError) -> None:
        super().__init__(error.code)
        self.error = error


class Ticket:
    """The right to run a mutating call; end it in exactly one way."""

    __slots__ = ("_calls", "_key", "_row", "ended")

    def __init__(self, calls: MutatingCalls, key: CallKey, row: CallRow) -> None:
        self._calls = calls
        self._key = key
        self._row = row
        self.ended = False

    async def succeed(self, output: JsonObject) -> None:
        """Keep the output for repeats of the call."""
        text = msgspec.json.encode(output)
        kept = text.decode() if len(text) <= OUTPUT_LIMIT_BYTES else None
        await self._end(replace(self._row, status=CallStatus.DONE, output=kept))

    async def fail(self, error: CapabilityError) -> None:
        """Keep the error for repeats: the provider refused this input for good."""
        row = replace(
            self._row,
            status=CallStatus.FAILED,
            error_code=error.code,
            error_message=error.message,
        )
        await self._end(row)

    async def lose(self) -> None:
        """Note that nobody knows what became of it."""
        await self._end(replace(self._row, status=CallStatus.UNKNOWN))

    async def abandon(self) -> None:
        """Take it back: the provider was not called, or did certainly nothing."""
        await self._end(None)

    async def _end(self, row: CallRow | None) -> None:
        if self.ended:
            return
        self.ended = True
        try:
            if row is None:
                await self._calls.rows.forget(self._key)
            else:
                await self._calls.rows.end(self._key, row)
        finally:
            self._calls.release(self._key)


class MutatingCalls:
    """Knows every mutating call of the last day, and those that run now."""

    def __init__(self, rows: ServiceCallRows, clock: Clock) -> None:
        self.rows = rows
        self.running: dict[CallKey, asyncio.Future[None]] = {}
        self._clock = clock

    async def enter(
        self, key: CallKey, fingerprint: str, request_id: str, *, kept_s: int = KEPT_S
    ) -> Ticket | Replay:
        """Begin a call, or return what the same call returned before; waits while that still runs.

        Raises:
            CapabilityError: `capability_idempotency_conflict`; the key was used with another input.
            CapabilityError: `capability_outcome_unknown`; the same call was cut off and may have
                taken effect.
            KeptRefusal: the provider refused the same call.
        """
        while (other := self.running.get(key)) is not None:
            await asyncio.shield(other)
        self.running[key] = asyncio.get_running_loop().create_future()
        now = self._clock.now_ms()
        row = CallRow(
            fingerprint, CallStatus.RUNNING, request_id, None, None, None, now, now + kept_s * 1000
        )
        try:
            before = await self.rows.begin(key, row, limit=CALLS_PER_USER)
        except BaseException:
            self.release(key)
            raise
        if before is None:
            return Ticket(self, key, row)
        self.release(key)
        return _replayed(before, fingerprint)

    async def settle(self) -> int:
        """After a start: what ran when the host died has an unknown outcome; returns how many."""
        return await self.rows.settle()

    def release(self, key: CallKey) -> None:
        """Let the next call with this key in."""
        done = self.running.pop(key, None)
        if done is not None and not done.done():
            done.set_result(None)


def _replayed(row: CallRow, fingerprint: str) -> Replay:
    if row.fingerprint != fingerprint:
        raise CapabilityError(
            "this idempotency key was used with another input",
            code="capability_idempotency_conflict",
        )
    if row.status is CallStatus.FAILED:
        message = row.error_message or "the provider refused it"
        raise KeptRefusal(provider_error(row.error_code or "", message))
    if row.status is not CallStatus.DONE:
        raise CapabilityError(
            "an earlier call with this key may have taken effect; check before repeating it",
            code="capability_outcome_unknown",
            earlier_request_id=row.request_id,
        )
    output: JsonObject = {"status": "completed"}
    if row.output is not None:
        output = msgspec.json.decode(row.output)
    return Replay(row.request_id, output)
