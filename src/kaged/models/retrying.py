"""`RetryingModel`: asks again when it may help, waits as the vendor wants, never in step.

A turn is made of attempts. An attempt that fails for a passing reason is made anew after a pause
that doubles, with jitter, so that many sessions do not come back all at once; `Retry-After` counts
as the least pause. A vendor that wants fewer questions holds up everybody who uses the same alias.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import Final, Protocol

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.models import turn
from kaged.models.errors import ModelError, ModelRateLimited

AttemptEvent = turn.TextDelta | turn.ThinkingDelta | turn.UsageSoFar | turn.TurnFinished
Price = Callable[[turn.Usage], turn.Usage]
Sleep = Callable[[float], Awaitable[None]]

CHARS_PER_TOKEN: Final = 4

_log = get_logger("kaged.models")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to ask again, and how long to wait.

    A vendor that wants a longer pause than `longest_wait_s` is not waited for.
    """

    retries: int = 4
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    longest_wait_s: float = 120.0

    def pause_s(self, attempt: int, draw: float) -> float:
        """Return the pause after a failed attempt (1, 2, …); `draw` is chance, between 0 and 1."""
        most = min(self.longest_pause_s, self.first_pause_s * 2 ** (attempt - 1))
        return most * (0.5 + draw / 2)


class Attempts(Protocol):
    """A model that makes one attempt at a time."""

    @property
    def alias(self) -> str:
        """The name under `[models]`."""
        ...

    @property
    def context_tokens(self) -> int:
        """How many tokens its window holds."""
        ...

    def attempt(self, request: turn.ModelRequest, number: int) -> AsyncGenerator[AttemptEvent]:
        """Ask once; `number` counts from 1. Ends with `TurnFinished` or raises a ModelError."""
        ...


class RetryingModel:
    """A model with patience. Safe to use by many sessions at once."""

    def __init__(
        self,
        attempts: Attempts,
        policy: RetryPolicy,
        *,
        clock: Clock,
        parallel: int | None = None,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        price: Price = lambda usage: usage,
    ) -> None:
        """`price` adds to what an unfinished answer took what that costs."""
        self.alias = attempts.alias
        self._attempts = attempts
        self._policy = policy
        self._clock = clock
        self._room = nullcontext() if parallel is None else asyncio.Semaphore(parallel)
        self._sleep = sleep
        self._chance = chance
        self._price = price
        self._not_before_s = 0.0

    @property
    def context_tokens(self) -> int:
        """How many tokens its window holds."""
        return self._attempts.context_tokens

    async def stream(self, request: turn.ModelRequest) -> AsyncGenerator[turn.ModelEvent]:
        """Ask, and ask again while it may help.

        Raises:
            ModelError: the last attempt's error.
        """
        number = 0
        while True:
            number += 1
            await self._wait_for_others()
            try:
                async with aclosing(self._once(request, number)) as events:
                    async for event in events:
                        yield event
            except ModelError as error:
                pause_s = self._pause_s(error, number)
                if pause_s is None:
                    raise
                _log.info(
                    "model.retried", alias=self.alias, code=error.code, attempt=number,
                    wait_s=round(pause_s, 3),
                )  # fmt: skip
                yield turn.TurnRetried(f"{error.code}: {error.message}", number, pause_s)
                await self._sleep(pause_s)
            else:
                return

    async def _once(
        self, request: turn.ModelRequest, number: int
    ) -> AsyncGenerator[turn.TextDelta | turn.ThinkingDelta | turn.TurnFinished]:
        """Make one attempt. What it took is counted in any case: the vendor counts it, too."""
        known, chars, began, settled = turn.Usage(), 0, False, False
        async with self._room:
            try:
                async with aclosing(self._attempts.attempt(request, number)) as events:
                    async for event in events:
                        began = True
                        match event:
                            case turn.UsageSoFar():
                                known = event.usage
                                continue
                            case turn.TurnFinished():
                                settled = True  # whoever takes it counts it
                            case _:
                                chars += len(event.text)
                        yield event
            except ModelError:
                settled = settled or not began  # who does not answer at all takes nothing
                raise
            finally:
                if not settled:
                    request.unfinished.add(self._price(taken_so_far(request, known, chars)))

    async def _wait_for_others(self) -> None:
        wait_s = self._not_before_s - self._clock.monotonic_s()
        if wait_s > 0:
            await self._sleep(wait_s)

    def _pause_s(self, error: ModelError, number: int) -> float | None:
        """Return how long to wait before the next attempt, or None when there is to be none."""
        if not error.retryable or number > self._policy.retries:
            return None
        pause_s = self._policy.pause_s(number, self._chance())
        wanted_s = error.retry_after_s
        if wanted_s is not None:
            if wanted_s > self._policy.longest_wait_s:
                return None
            pause_s = max(wanted_s, 0.0) + pause_s * (0.1 if wanted_s else 1.0)
            if isinstance(error, ModelRateLimited):
                # The others wait as long as the vendor asked, without the jitter of this one.
                until = self._clock.monotonic_s() + wanted_s
                self._not_before_s = max(self._not_before_s, until)
        return pause_s


def taken_so_far(request: turn.ModelRequest, known: turn.Usage, chars: int) -> turn.Usage:
    """Return what an unfinished answer took: as the vendor counted, or an estimate by length."""
    read = known.input_tokens or sum(map(_length, request.messages)) // CHARS_PER_TOKEN
    return replace(
        known,
        input_tokens=max(read, 1),
        output_tokens=max(known.output_tokens, -(-chars // CHARS_PER_TOKEN)),
    )


def _length(message: turn.ModelMessage) -> int:
    if isinstance(message, turn.ToolResultMessage):
        return len(message.content)
    return len(message.text)
