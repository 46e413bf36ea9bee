"""What an answer took that did not come to its end: by the vendor's count, or by length."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from kaged.base import ManualClock
from kaged.models.errors import ModelError, ModelRefused, ModelUnavailable
from kaged.models.retrying import AttemptEvent, RetryingModel, RetryPolicy
from kaged.models.turn import (
    AssistantMessage,
    ModelRequest,
    ModelTurn,
    TextDelta,
    TurnFinished,
    Usage,
    UsageSoFar,
    UserMessage,
)

ANSWER = TurnFinished(ModelTurn(AssistantMessage("12345678"), Usage(10, 2)))


class Playing:
    """Sends these events, one list for each attempt; an error among them is raised."""

    alias = "m"
    context_tokens = 1000

    def __init__(self, *attempts: Sequence[AttemptEvent | ModelError]) -> None:
        self._attempts = list(attempts)

    async def attempt(self, request: ModelRequest, number: int) -> AsyncGenerator[AttemptEvent]:
        del request
        for event in self._attempts[number - 1]:
            if isinstance(event, ModelError):
                raise event
            yield event


async def no_sleep(_: float) -> None:
    """Take no time."""


def model_of(*attempts: Sequence[AttemptEvent | ModelError]) -> RetryingModel:
    return RetryingModel(
        Playing(*attempts), RetryPolicy(), clock=ManualClock(), sleep=no_sleep,
        price=lambda usage: replace(usage, cost_usd=float(usage.input_tokens)),
    )  # fmt: skip


def request() -> ModelRequest:
    return ModelRequest([UserMessage("x" * 40)])


async def test_an_answer_that_is_left_counts_with_its_price() -> None:
    asked = request()
    async with aclosing(model_of([TextDelta("12345678"), ANSWER]).stream(asked)) as events:
        assert isinstance(await anext(events), TextDelta)
    assert asked.unfinished.usage == Usage(10, 2, cost_usd=10.0)


async def test_the_vendors_count_comes_before_an_estimate_and_is_shown_to_nobody() -> None:
    asked = request()
    counted = [UsageSoFar(Usage(77, 5, 3)), TextDelta("1234"), ModelUnavailable("cut")]
    seen = [one async for one in model_of(counted, [ANSWER]).stream(asked)]
    assert not any(isinstance(one, UsageSoFar) for one in seen)
    assert asked.unfinished.usage == Usage(77, 5, 3, 77.0)


async def test_a_whole_answer_and_one_that_never_began_count_nothing_here() -> None:
    asked = request()
    assert [one async for one in model_of([ANSWER]).stream(asked)] == [ANSWER]
    with pytest.raises(ModelRefused):
        [one async for one in model_of([ModelRefused("no")]).stream(asked)]
    assert asked.unfinished.usage == Usage()
