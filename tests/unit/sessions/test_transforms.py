"""Where scripts may change what a run is about to do, and say no to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kaged.base import JsonObject, ManualClock, Tasks
from kaged.models.turn import Usage
from kaged.sessions.budget import Budget, Spending
from kaged.sessions.idle import IdleWatch
from kaged.sessions.transforms import MAX_TRANSFORMS, ToolResultView, Transforms, TransformVeto


async def test_each_gets_what_the_one_before_it_gave() -> None:
    """In the order of registration, until one is taken back."""
    transforms = Transforms()

    async def louder(_session: str, text: str) -> str:
        return text + "!"

    async def nothing(_session: str, _text: str) -> None:
        return None

    undo = transforms.on_before_prompt(louder)
    transforms.on_before_prompt(nothing)
    transforms.on_before_prompt(louder)
    assert await transforms.before_prompt("s", "hi") == "hi!!"
    undo()
    undo()
    assert await transforms.before_prompt("s", "hi") == "hi!"


async def test_whoever_may_say_no_and_breaks_says_no() -> None:
    """By a veto, an exception or taking too long."""
    transforms = Transforms(patience_s=0.01)

    async def no(_session: str, _name: str, _args: JsonObject) -> TransformVeto:
        return TransformVeto("not today")

    async def broken(_session: str, _name: str, _args: JsonObject) -> None:
        raise RuntimeError("oh")

    async def slow(_session: str, _name: str, _args: JsonObject) -> None:
        await asyncio.Event().wait()

    for one, reason in ((no, "not today"), (broken, "RuntimeError"), (slow, "TimeoutError")):
        undo = transforms.on_before_tool_call(one)
        said = await transforms.before_tool_call("s", "file.read", {"path": "a"})
        assert isinstance(said, TransformVeto)
        assert reason in said.reason
        undo()
    assert await transforms.before_tool_call("s", "t", {"a": 1}) == {"a": 1}


async def test_whoever_only_changes_and_breaks_is_passed_over() -> None:
    """Results and requests go on as they were."""
    transforms = Transforms(patience_s=0.01)

    async def broken(_view: ToolResultView) -> str:
        raise RuntimeError("oh")

    async def shout(view: ToolResultView) -> str:
        return view.text.upper()

    async def slow(_session: str, _messages: Sequence[JsonObject]) -> None:
        await asyncio.Event().wait()

    async def shorter(_session: str, messages: Sequence[JsonObject]) -> Sequence[JsonObject]:
        return messages[1:]

    transforms.on_after_tool_result(broken)
    transforms.on_after_tool_result(shout)
    view = ToolResultView("s", "r", "t", "quiet", is_error=False)
    assert await transforms.after_tool_result(view) == "QUIET"
    assert not transforms.has_context
    transforms.on_context(slow)
    transforms.on_context(shorter)
    assert transforms.has_context
    messages: list[JsonObject] = [{"a": 1}, {"b": 2}]
    assert await transforms.context("s", messages) == [{"b": 2}]


def test_there_is_a_limit_to_how_many_are_asked() -> None:
    """A script that registers in a loop is stopped."""
    transforms = Transforms()

    async def nothing(_view: ToolResultView) -> None:
        return None

    for _ in range(MAX_TRANSFORMS):
        transforms.on_after_tool_result(nothing)
    with pytest.raises(ValueError, match="no more"):
        transforms.on_after_tool_result(nothing)


def test_a_budget_counts_everything_and_names_what_is_used_up(clock: ManualClock) -> None:
    """Steps, tokens, time and money."""
    spending = Spending(Budget(), clock)
    for _ in range(1000):
        spending.add(Usage(1000, 1000, cost_usd=1.0))
    assert spending.exceeded() is None
    assert spending.left_s is None
    money = Spending(Budget(cost_usd=1.5), clock)
    money.add(Usage(1, 1))
    assert money.exceeded() is None
    money.add(Usage(1, 1, cost_usd=2.0))
    assert "USD" in str(money.exceeded())
    timed = Spending(Budget(seconds=10), clock)
    clock.advance(4)
    assert timed.left_s == 6
    clock.advance(7)
    assert "10 s" in str(timed.exceeded())


async def test_idle_sessions_are_told_once_and_a_busy_one_is_not(clock: ManualClock) -> None:
    """By the clock that was handed in, whatever the loop's says."""
    told: list[str] = []
    failures: list[BaseException] = []
    tasks = Tasks("test", lambda _, error: failures.append(error))

    async def on_idle(session_id: str) -> None:
        told.append(session_id)

    watch = IdleWatch(on_idle, clock=clock, tasks=tasks, idle_s=lambda: 10.0)
    for session in "abc":
        watch.touched(session)
        clock.advance(1)
    watch.busy("b")
    clock.advance(6)
    assert watch.sweep() == []
    clock.advance(1)
    assert watch.sweep() == ["a"]
    clock.advance(100)
    assert watch.sweep() == ["c"]
    assert watch.sweep() == []
    assert len(watch) == 0
    await asyncio.sleep(0)
    assert told == ["a", "c"]
    await tasks.close()
    assert failures == []
