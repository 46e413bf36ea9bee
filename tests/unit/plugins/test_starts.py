"""How many plugins start at once, and that one which never answers holds up nobody."""

from __future__ import annotations

import asyncio
import os

import pytest

from kaged.plugins.starts import Starts, waited_for_cpu_s


async def test_no_more_than_the_limit_start_at_once() -> None:
    starts = Starts(at_once=3, slot_s=60.0)
    running = 0
    most = 0

    async def start() -> None:
        nonlocal running, most
        async with starts.slot():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(start() for _ in range(20)))
    assert most == 3


async def test_a_start_that_takes_too_long_gives_its_slot_away_and_goes_on() -> None:
    starts = Starts(at_once=1, slot_s=0.01)
    go_on = asyncio.Event()

    async def hang() -> str:
        async with starts.slot():
            await go_on.wait()
            return "done"

    hanging = asyncio.get_running_loop().create_task(hang())
    await asyncio.sleep(0)
    async with asyncio.timeout(5), starts.slot():
        assert not hanging.done()
    go_on.set()
    assert await hanging == "done"
    # Given back once, not twice: one slot is still one slot.
    entered = 0
    async with starts.slot():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), starts.slot():
                entered += 1
    assert entered == 0


async def test_a_failed_start_gives_its_slot_back() -> None:
    starts = Starts(at_once=1, slot_s=60.0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with starts.slot():
                raise ZeroDivisionError


async def test_a_start_that_stands_in_line_for_a_cpu_keeps_its_slot() -> None:
    starts = Starts(at_once=1, slot_s=0.001)
    asked = 0

    def waited() -> float:
        """Stand in line ever longer, for five looks; then wait for something else."""
        nonlocal asked
        asked += 1
        return min(asked, 5) * 0.02

    async with starts.slot() as slot:
        slot.watch(waited)
        async with asyncio.timeout(20), starts.slot():
            assert asked == 6


def test_how_long_a_process_stood_in_line_is_known_for_those_that_exist() -> None:
    assert waited_for_cpu_s(os.getpid()) >= 0.0
    assert waited_for_cpu_s(None) == 0.0
    assert waited_for_cpu_s(2**22 + 1) == 0.0
