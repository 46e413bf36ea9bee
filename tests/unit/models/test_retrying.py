"""Asking again: when it may help, as late as the vendor wants, and not for ever."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from kaged.base import ManualClock
from kaged.models.errors import (
    ModelBadAnswer,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
)
from kaged.models.fallback import FallbackModel
from kaged.models.retrying import AttemptEvent, RetryingModel, RetryPolicy
from kaged.models.turn import (
    AssistantMessage,
    ModelEvent,
    ModelRequest,
    ModelTurn,
    TextDelta,
    TurnFinished,
    TurnRetried,
    UserMessage,
)

REQUEST = ModelRequest([UserMessage("hello")])


class Failing:
    """Fails with each of these, then answers."""

    context_tokens = 1000

    def __init__(self, *errors: ModelError, alias: str = "m") -> None:
        self.alias = alias
        self.errors = list(errors)
        self.asked = 0
        self.closed = 0

    async def attempt(self, request: ModelRequest, number: int) -> AsyncGenerator[AttemptEvent]:
        assert request is REQUEST
        self.asked += 1
        try:
            yield TextDelta(f"attempt {number}")
            if self.errors:
                raise self.errors.pop(0)
            yield TurnFinished(ModelTurn(AssistantMessage(f"answer of {self.alias}")))
        finally:
            self.closed += 1


class Patience:
    """A sleep that takes no time but moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)


def patient(
    attempts: Failing, clock: ManualClock, *, retries: int = 4
) -> tuple[RetryingModel, Patience]:
    sleep = Patience(clock)
    policy = RetryPolicy(retries=retries)
    model = RetryingModel(attempts, policy, clock=clock, sleep=sleep, chance=lambda: 1.0)
    return model, sleep


async def events_of(model: RetryingModel | FallbackModel) -> list[ModelEvent]:
    return [event async for event in model.stream(REQUEST)]


async def test_a_passing_failure_is_tried_again_after_growing_pauses(clock: ManualClock) -> None:
    attempts = Failing(ModelUnavailable("a"), ModelBadAnswer("b"), ModelUnavailable("c"))
    model, sleep = patient(attempts, clock)
    events = await events_of(model)
    assert sleep.slept == [0.5, 1.0, 2.0]
    retried = [event for event in events if isinstance(event, TurnRetried)]
    assert [one.attempt for one in retried] == [1, 2, 3]
    assert retried[0].reason.startswith("model_unavailable")
    assert isinstance(events[-1], TurnFinished)
    assert attempts.asked == attempts.closed == 4


async def test_retries_end_with_the_last_error(clock: ManualClock) -> None:
    model, sleep = patient(Failing(*[ModelUnavailable(str(n)) for n in range(9)]), clock, retries=2)
    with pytest.raises(ModelUnavailable, match="2"):
        await events_of(model)
    assert len(sleep.slept) == 2


async def test_a_refusal_is_not_tried_again(clock: ManualClock) -> None:
    attempts = Failing(ModelRefused("no"))
    model, sleep = patient(attempts, clock)
    with pytest.raises(ModelRefused):
        await events_of(model)
    assert attempts.asked == 1
    assert sleep.slept == []


async def test_retry_after_is_the_least_pause_and_holds_up_the_others(clock: ManualClock) -> None:
    attempts = Failing(ModelRateLimited("slow down", retry_after_s=20.0))
    model, sleep = patient(attempts, clock)
    stream = model.stream(REQUEST)
    seen = [await anext(stream), await anext(stream)]
    assert isinstance(seen[1], TurnRetried)
    assert seen[1].wait_s >= 20
    # Somebody else asks meanwhile: they wait as long as the vendor wanted.
    await events_of(model)
    assert sleep.slept == [20.0]
    assert [type(event) async for event in stream][-1] is TurnFinished


async def test_a_vendor_that_wants_an_hour_is_not_waited_for(clock: ManualClock) -> None:
    attempts = Failing(ModelRateLimited("later", retry_after_s=3600.0))
    model, sleep = patient(attempts, clock)
    with pytest.raises(ModelRateLimited) as caught:
        await events_of(model)
    assert caught.value.retry_after_s == 3600.0
    assert sleep.slept == []


def test_pauses_are_never_in_step_and_never_beyond_the_longest() -> None:
    policy = RetryPolicy()
    assert policy.pause_s(1, 0.0) < policy.pause_s(1, 0.9)
    assert policy.pause_s(50, 1.0) == policy.longest_pause_s
    assert all(policy.pause_s(n, 0.0) > 0 for n in range(1, 60))


async def test_leaving_the_stream_closes_the_attempt(clock: ManualClock) -> None:
    attempts = Failing()
    model, _ = patient(attempts, clock)
    stream = model.stream(REQUEST)
    await anext(stream)
    await stream.aclose()
    assert attempts.closed == 1


async def test_a_model_out_of_order_is_stepped_over(clock: ManualClock) -> None:
    first, _ = patient(Failing(*[ModelUnavailable("down")] * 9, alias="first"), clock, retries=1)
    second, _ = patient(Failing(alias="second"), clock)
    model = FallbackModel([first, second])
    events = await events_of(model)
    assert model.alias == "first"
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].turn.message.text == "answer of second"
    assert any(isinstance(one, TurnRetried) and "second" in one.reason for one in events)


async def test_a_refusal_is_not_stepped_over(clock: ManualClock) -> None:
    other = Failing(alias="second")
    first, _ = patient(Failing(ModelRefused("no"), alias="first"), clock)
    second, _ = patient(other, clock)
    with pytest.raises(ModelRefused):
        await events_of(FallbackModel([first, second]))
    assert other.asked == 0
