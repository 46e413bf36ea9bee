from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from kaged.base import Tasks
from kaged.pipeline import hook_call
from kaged.pipeline.hook_call import HookTimedOut, finish_hook, running_task, start_hook
from raising import raises_code


class Failures(list[str]):
    def note(self, name: str, error: BaseException) -> None:
        self.append(f"{name}: {error!r}")


async def drive(
    hook: Coroutine[Any, Any, Any], timeout_s: float = 5.0, orphan_tasks: Tasks | None = None
) -> Any:
    """Call a hook as the runner does."""
    tasks = orphan_tasks or Tasks("t", Failures().note)
    finished, answer = start_hook(hook, running_task(), copy_context())
    return answer if finished else await finish_hook(hook, running_task(), answer, timeout_s, tasks)


async def test_a_hook_that_waits_gets_what_it_waited_for() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def hook() -> str:
        first = await gate
        await asyncio.sleep(0)
        return first + "!"

    asyncio.get_running_loop().call_soon(gate.set_result, "hello")
    assert await drive(hook()) == "hello!"


async def test_an_exception_of_what_it_waited_for_reaches_the_hook() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def hook() -> str:
        try:
            return await gate
        except KeyError:
            await asyncio.sleep(0)
            return "handled"

    asyncio.get_running_loop().call_soon(gate.set_exception, KeyError("x"))
    assert await drive(hook()) == "handled"


async def test_a_hook_that_is_too_slow_is_timed_out_and_cleans_up() -> None:
    cleaned: list[bool] = []

    async def hook() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(HookTimedOut, match=r"exceeded 0\.01s timeout"):
        await drive(hook(), 0.01)
    assert cleaned == [True]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_hook_that_never_waits_for_anything_but_lets_others_run_is_timed_out() -> None:
    rounds = 0

    async def hook() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    with pytest.raises(HookTimedOut, match=r"exceeded 0\.01s timeout"):
        await drive(hook(), 0.01)
    assert rounds
    assert asyncio.current_task() is running_task()
    assert running_task().cancelling() == 0


async def test_a_hook_in_time_leaves_no_timer_behind() -> None:
    """The second hook of the task waits longer than the first was given."""
    armed: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def noting(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        handle = call_at(*args, **kwargs)
        armed.append(handle)
        return handle

    async def hook(gate: asyncio.Future[str]) -> str:
        await asyncio.sleep(0)
        return await gate

    loop.call_at = noting  # pyright: ignore[reportAttributeAccessIssue] - put back below
    try:
        for _ in range(2):
            gate: asyncio.Future[str] = loop.create_future()
            loop.call_soon(loop.call_soon, gate.set_result, "done")
            assert await drive(hook(gate), 30) == "done"
    finally:
        del loop.call_at
    assert len(armed) == 2
    assert all(handle.cancelled() for handle in armed)


async def test_a_hook_that_swallows_its_cancellation_is_timed_out_all_the_same() -> None:
    async def returns() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"
        return ""

    async def raises() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ValueError("masked") from error
        return ""

    for hook in (returns(), raises()):
        with pytest.raises(HookTimedOut):
            await drive(hook, 0.01)
    await asyncio.sleep(0)


async def test_a_hook_that_goes_on_after_its_timeout_finishes_in_the_background() -> None:
    done = asyncio.Event()
    failures = Failures()
    orphan_tasks = Tasks("t", failures.note)

    async def hook() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.set()

    with pytest.raises(HookTimedOut):
        await drive(hook(), 0.01, orphan_tasks)
    assert not done.is_set()
    async with asyncio.timeout(5):
        await done.wait()
    await asyncio.sleep(0)
    assert failures == []
    await orphan_tasks.close()


async def test_a_hook_that_never_ends_is_closed_after_the_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook_call, "CLEANUP_GRACE_S", 0.01)
    closed = asyncio.Event()
    failures = Failures()
    orphan_tasks = Tasks("t", failures.note)

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
            except GeneratorExit:
                closed.set()
                raise

    async def will_not_close() -> None:
        refusals = 3
        while refusals:
            try:
                await asyncio.Event().wait()
            except BaseException:  # noqa: BLE001 - the worst hook there is
                refusals -= 1

    for hook in (stubborn(), will_not_close()):
        with pytest.raises(HookTimedOut):
            await drive(hook, 0.01, orphan_tasks)
    async with asyncio.timeout(5):
        await closed.wait()
        while len(orphan_tasks):  # noqa: ASYNC110 - the owner of tasks has no event for their end
            await asyncio.sleep(0)
    assert failures == []


async def test_a_hook_that_fails_while_cleaning_up_troubles_nobody() -> None:
    failures = Failures()
    orphan_tasks = Tasks("t", failures.note)

    async def hook() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise ValueError("in the background")

    with pytest.raises(HookTimedOut):
        await drive(hook(), 0.01, orphan_tasks)
    async with asyncio.timeout(5):
        while len(orphan_tasks):  # noqa: ASYNC110 - the owner of tasks has no event for their end
            await asyncio.sleep(0)
    assert failures == []


async def test_a_hook_may_use_timeouts_and_task_groups_of_its_own() -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async def hook() -> str:
        try:
            async with asyncio.timeout(0.01):
                try:
                    await slow()
                finally:
                    await asyncio.sleep(0)  # cleaning up takes a moment
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            one = group.create_task(asyncio.sleep(0, "one"))
        return one.result()

    assert await drive(hook()) == "one"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_timeout_error_of_the_hook_itself_is_its_own_failure() -> None:
    async def hook() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await drive(hook())


async def test_a_hook_that_cancels_itself_fails_and_the_caller_lives_on() -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def awaits_cancelled() -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await asyncio.sleep(0)
        await gone

    for hook in (raises(), awaits_cancelled()):
        with raises_code("plugin_cancelled"):
            await drive(hook)
    await asyncio.sleep(0)


async def test_the_callers_cancellation_goes_through_a_hook_that_swallows_it() -> None:
    started = asyncio.Event()

    async def hook() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "ignored"
        return ""

    caller = asyncio.get_running_loop().create_task(drive(hook()))
    await started.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_the_callers_cancellation_does_not_wait_long_for_a_hook_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook_call, "CLEANUP_GRACE_S", 0.01)
    started = asyncio.Event()
    orphan_tasks = Tasks("t", Failures().note)

    async def hook() -> None:
        started.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    caller = asyncio.get_running_loop().create_task(drive(hook(), 3600, orphan_tasks))
    await started.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await caller
    await orphan_tasks.close()


async def test_done_and_late_in_the_same_turn_counts_as_late() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()

    async def hook() -> str:
        await gate
        return "just in time"

    waiting = asyncio.get_running_loop().create_task(drive(hook(), 0.01))
    # Both fall due in one turn: the result first, then the deadline.
    loop.call_at(loop.time() + 0.01, gate.set_result, None)
    with contextlib.suppress(HookTimedOut):
        assert await waiting == "just in time"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_hook_may_handle_a_cancelled_future_and_go_on_waiting() -> None:
    async def hook() -> str:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(gone.cancel)
        try:
            await gone
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "went on"

    assert await drive(hook()) == "went on"


async def test_a_hook_that_cancels_its_caller_and_waits_is_closed_at_once() -> None:
    closed: list[bool] = []

    async def hook() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    with raises_code("plugin_cancelled", match="the task that it runs in"):
        await drive(hook())
    assert closed == [True]
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_hook_that_will_not_close_is_left_alone() -> None:
    async def hook() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except GeneratorExit:
            await asyncio.sleep(0)

    coroutine = hook()
    with raises_code("plugin_cancelled"):
        await drive(coroutine)
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def test_a_cancellation_of_the_caller_is_not_lost_behind_one_by_the_hook() -> None:
    async def hook() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)  # somebody else, at the worst moment

    with pytest.raises(asyncio.CancelledError):
        await asyncio.get_running_loop().create_task(drive(hook()))


async def test_the_callers_cancellation_wins_over_what_the_hook_raises() -> None:
    started = asyncio.Event()

    async def hook() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ValueError("masked") from error

    caller = asyncio.get_running_loop().create_task(drive(hook()))
    await started.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_hook_that_exits_while_cleaning_up_does_not_end_the_program() -> None:
    failures = Failures()
    background = Tasks("t", failures.note)

    async def hook() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise SystemExit(3)

    with pytest.raises(HookTimedOut):
        await drive(hook(), 0.01, background)
    async with asyncio.timeout(5):
        while len(background):  # noqa: ASYNC110 - the owner of tasks has no event for their end
            await asyncio.sleep(0)
    assert failures == []
