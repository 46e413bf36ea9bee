"""Where plain handlers run: side by side up to a limit, then in turn, never lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kaged.sdk.threads import Threads


async def test_work_runs_aside_and_gives_its_result() -> None:
    threads = Threads()
    assert await threads.call(lambda a, b: a + b, 1, 2) == 3
    assert await threads.call(threading.get_ident) != threading.get_ident()
    threads.close()


async def test_what_work_raises_reaches_whoever_waits() -> None:
    threads = Threads()

    def fail(problem: type[BaseException]) -> None:
        raise problem("no")

    with pytest.raises(KeyError):
        await threads.call(fail, KeyError)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(fail, StopIteration)
    threads.close()


async def test_up_to_the_limit_runs_side_by_side_and_the_rest_takes_turns() -> None:
    threads = Threads(3)
    together = threading.Barrier(3, timeout=5)
    lock = threading.Lock()
    running = 0
    most = 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    # Nine pieces pass a barrier of three only if three run at once, and never more do.
    await asyncio.gather(*(threads.call(work) for _ in range(9)))
    assert most <= 3
    threads.close()


async def test_one_thread_is_enough_for_work_that_comes_one_at_a_time() -> None:
    threads = Threads()
    seen: set[int] = set()
    for _ in range(5):
        seen.add(await threads.call(threading.get_ident))
    assert len(seen) == 1  # it is marked idle before its result is handed over
    threads.close()


async def test_who_is_told_of_a_result_finds_the_thread_free() -> None:
    threads = Threads()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    started: list[threading.Thread] = []

    def next_work() -> None:
        loop.call_soon_threadsafe(ended.set_result, None)

    def tell() -> None:
        before = threading.enumerate()
        threads.submit(next_work)
        started.extend(one for one in threading.enumerate() if one not in before)

    threads.submit(lambda: tell)
    await ended
    assert started == []
    threads.close()


async def test_nothing_starts_after_close() -> None:
    threads = Threads()
    await threads.call(lambda: None)
    threads.close()
    ran: list[int] = []
    threads.submit(ran.append, 1)
    await asyncio.sleep(0)
    assert ran == []
