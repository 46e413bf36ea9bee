"""`Deadlines`: waits that end in time, too late, or because somebody else wants so."""

from __future__ import annotations

import asyncio

import pytest

from kaged.services.deadlines import Deadlines

LONG_S = 3600.0


async def _forever(seen: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


async def _waits(deadlines: Deadlines, seen: list[str]) -> None:
    with deadlines.wait():
        await _forever(seen)


async def test_what_takes_too_long_is_cancelled_and_ends_as_a_timeout() -> None:
    deadlines, seen = Deadlines(0), list[str]()
    with pytest.raises(TimeoutError):
        await _waits(deadlines, seen)
    assert seen == ["cancelled"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0  # nothing is left of it: the task can go on
    await asyncio.sleep(0)
    assert not deadlines._waits


async def test_every_one_of_many_waits_ends() -> None:
    deadlines, seen = Deadlines(0), list[str]()
    for _ in range(3):  # one timer at a time, and a new one when there is work again
        found = await asyncio.gather(
            *[_waits(deadlines, seen) for _ in range(50)], return_exceptions=True
        )
        assert [type(one) for one in found] == [TimeoutError] * 50
    assert seen == ["cancelled"] * 150
    assert not deadlines._waits


async def test_one_timer_serves_all_and_is_set_for_the_oldest_that_still_waits() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(LONG_S)
    with deadlines.wait():
        pass
    first = deadlines._timer
    assert first is not None
    with deadlines.wait():
        assert deadlines._timer is first
        # It goes off for a wait that is over, and finds one that has time left.
        deadlines._ring(loop)
        assert deadlines._timer is not first
        (wait,) = deadlines._waits
        assert deadlines._timer is not None
        assert deadlines._timer.when() == pytest.approx(wait.due_s, abs=1)
        deadlines._timer.cancel()
    first.cancel()
    deadlines._ring(loop)
    assert deadlines._timer is None


async def test_what_ends_in_time_leaves_nothing_behind() -> None:
    deadlines = Deadlines(LONG_S)
    with deadlines.wait():
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="own"), deadlines.wait():
        raise ValueError("its own trouble")
    assert not deadlines._waits
    assert deadlines._timer is not None
    deadlines._timer.cancel()


async def test_a_task_that_somebody_cancels_is_cancelled_and_not_late() -> None:
    deadlines, seen = Deadlines(LONG_S), list[str]()
    task = asyncio.get_running_loop().create_task(_waits(deadlines, seen))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    assert not deadlines._waits
    assert deadlines._timer is not None
    deadlines._timer.cancel()


async def test_a_task_that_is_late_and_cancelled_stays_cancelled() -> None:
    deadlines, seen = Deadlines(LONG_S), list[str]()
    task = asyncio.get_running_loop().create_task(_waits(deadlines, seen))
    await asyncio.sleep(0)
    (wait,) = deadlines._waits
    task.cancel()
    wait.expire()
    wait.expire()  # once is enough: the second finds it ended
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1
    assert deadlines._timer is not None
    deadlines._timer.cancel()


async def test_an_answer_that_comes_in_spite_of_the_cancellation_counts() -> None:
    deadlines, seen = Deadlines(0), list[str]()

    async def stubborn() -> str:
        with deadlines.wait():
            try:
                await _forever(seen)
            except asyncio.CancelledError:
                return "an answer all the same"
        raise AssertionError("it never ends otherwise")

    assert await stubborn() == "an answer all the same"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
