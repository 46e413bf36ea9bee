"""Where scripts may change what a run is about to do, and say no to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kaged.base import JsonObject, ManualClock, Tasks
from kaged.sessions.idle import IdleWatch
from kaged.sessions.transforms import MAX_TRANSFORMS, ContextDraft, Transforms, TransformVeto


async def test_each_gets_what_the_one_before_it_gave() -> None:
    """In the order of registration, until one is taken back."""
    transforms = Transforms()

    async def louder(_session: str, _name: str, args: JsonObject) -> JsonObject:
        return {"text": f"{args['text']}!"}

    async def nothing(_session: str, _name: str, _args: JsonObject) -> None:
        return None

    undo = transforms.on_before_tool_call(louder)
    transforms.on_before_tool_call(nothing)
    transforms.on_before_tool_call(louder)
    assert await transforms.before_tool_call("s", "t", {"text": "hi"}) == {"text": "hi!!"}
    undo()
    undo()
    assert await transforms.before_tool_call("s", "t", {"text": "hi"}) == {"text": "hi!"}


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

    async def broken(_session: str, _draft: ContextDraft) -> None:
        raise RuntimeError("oh")

    async def slow(_session: str, _draft: ContextDraft) -> None:
        await asyncio.Event().wait()

    async def shorter(_session: str, draft: ContextDraft) -> ContextDraft:
        return replace(draft, messages=draft.messages[1:])

    assert not transforms.has_context
    transforms.on_context(broken)
    transforms.on_context(slow)
    transforms.on_context(shorter)
    assert transforms.has_context
    found = await transforms.context("s", ContextDraft([{"a": 1}, {"b": 2}], "Be brief."))
    assert found == ContextDraft([{"b": 2}], "Be brief.")


def test_there_is_a_limit_to_how_many_are_asked() -> None:
    """A script that registers in a loop is stopped."""
    transforms = Transforms()

    async def nothing(_session: str, _draft: ContextDraft) -> None:
        return None

    for _ in range(MAX_TRANSFORMS):
        transforms.on_context(nothing)
    with pytest.raises(ValueError, match="no more"):
        transforms.on_context(nothing)


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
