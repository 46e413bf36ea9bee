"""Who may work on a file: readers together, a mutation alone, nobody for ever."""

from __future__ import annotations

import asyncio

import pytest

from kaged.base import ManualClock
from kaged.workspace.errors import FileBusy
from kaged.workspace.locks import MAX_WAITERS, PATIENCE_S, FileLocks
from kaged.workspace.path import ProjectPath
from requirements import requirement


@pytest.fixture
def locks(clock: ManualClock) -> FileLocks:
    return FileLocks(clock)


class Holder:
    """A call that holds a lock until it is told to go."""

    def __init__(self, locks: FileLocks, *paths: str, reads: bool = False) -> None:
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self._locks = locks
        self._paths = paths
        self._reads = reads
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        lock = (
            self._locks.reading(self._paths[0])
            if self._reads
            else self._locks.mutating(self._paths)
        )
        async with lock:
            self.inside.set()
            await self.go.wait()

    async def end(self) -> None:
        self.go.set()
        await self.task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@requirement("AT-FAIL-12")
async def test_a_second_mutation_waits_five_seconds_and_no_longer(
    locks: FileLocks, clock: ManualClock
) -> None:
    first = Holder(locks, "/p/a")
    await first.inside.wait()
    late = Holder(locks, "/p/a")
    in_time = Holder(locks, "/p/a")
    await settle()
    assert not late.inside.is_set()
    clock.advance(4.9)
    await settle()
    assert not late.task.done()
    clock.advance(0.2)
    for waiting in (late, in_time):
        with pytest.raises(FileBusy) as caught:
            async with asyncio.timeout(5):
                await waiting.task
        assert caught.value.code == "file_busy"
        assert "/p/" not in str(caught.value)

    patient = Holder(locks, "/p/a")
    await settle()
    clock.advance(4)
    await first.end()
    async with asyncio.timeout(5):
        await patient.inside.wait()
    await patient.end()
    assert locks.held() == 0


@requirement("AT-FAIL-14", "AT-AMB-51")
async def test_readers_share_and_wait_for_a_running_mutation_only(
    locks: FileLocks, clock: ManualClock
) -> None:
    readers = [Holder(locks, "/p/a", reads=True) for _ in range(10)]
    await settle()
    assert all(reader.inside.is_set() for reader in readers)
    writer = Holder(locks, "/p/a")
    await settle()
    assert not writer.inside.is_set(), "a mutation excludes readers"
    another = Holder(locks, "/p/a", reads=True)
    await settle()
    assert another.inside.is_set(), "a mutation that waits keeps no reader out"
    for reader in (*readers, another):
        await settle()
        assert not writer.inside.is_set(), "it waits for the last of them"
        await reader.end()
    await settle()
    assert writer.inside.is_set()
    late = Holder(locks, "/p/a", reads=True)
    await settle()
    assert not late.inside.is_set()
    clock.advance(5.1)
    with pytest.raises(FileBusy):
        async with asyncio.timeout(5):
            await late.task
    await writer.end()


async def test_readers_cannot_keep_a_mutation_out_for_ever(
    locks: FileLocks, clock: ManualClock
) -> None:
    reader = Holder(locks, "/p/a", reads=True)
    await reader.inside.wait()
    writer = Holder(locks, "/p/a")
    await settle()
    clock.advance(PATIENCE_S)
    second = Holder(locks, "/p/a", reads=True)
    await settle()
    assert not second.inside.is_set()
    await reader.end()
    await settle()
    assert writer.inside.is_set()
    await writer.end()
    await settle()
    assert second.inside.is_set()
    await second.end()


@requirement("AT-FAIL-12", "AT-FAIL-14")
async def test_who_stood_behind_a_mutation_that_gave_up_goes_on_at_once(
    locks: FileLocks, clock: ManualClock
) -> None:
    reader = Holder(locks, "/p/a", reads=True)
    await reader.inside.wait()
    writer = Holder(locks, "/p/a")
    await settle()
    clock.advance(PATIENCE_S)
    second = Holder(locks, "/p/a", reads=True)
    await settle()
    assert not second.inside.is_set()
    clock.advance(4.5)
    with pytest.raises(FileBusy):
        async with asyncio.timeout(5):
            await writer.task
    await settle()
    assert second.inside.is_set(), "only a reader holds it"
    await second.end()
    await reader.end()
    assert locks.held() == 0


@requirement("AT-FAIL-13")
async def test_several_files_are_taken_in_one_order(locks: FileLocks) -> None:
    """Two calls with the same files in opposite order would wait for each other for ever."""
    done: list[int] = []

    async def work(number: int, paths: list[str]) -> None:
        for _ in range(20):
            async with locks.mutating(paths):
                await asyncio.sleep(0)
        done.append(number)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(work(1, ["/p/a", "/p/b", "/p/c"]))
        group.create_task(work(2, ["/p/c", "/p/b", "/p/a"]))
        group.create_task(work(3, ["/p/b", "/p/b", "/p/a"]))
    assert sorted(done) == [1, 2, 3]
    assert locks.held() == 0


async def test_all_of_several_files_are_taken_or_none(locks: FileLocks, clock: ManualClock) -> None:
    other = Holder(locks, "/p/b")
    await other.inside.wait()
    both = Holder(locks, "/p/a", "/p/b")
    await settle()
    clock.advance(6)
    with pytest.raises(FileBusy):
        async with asyncio.timeout(5):
            await both.task
    free = Holder(locks, "/p/a")
    await settle()
    assert free.inside.is_set(), "what was taken before the failure was given back"
    await free.end()
    await other.end()


async def test_a_cancelled_waiter_leaves_no_trace(locks: FileLocks) -> None:
    first = Holder(locks, "/p/a")
    await first.inside.wait()
    second, third = Holder(locks, "/p/a"), Holder(locks, "/p/a")
    await settle()
    second.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second.task
    await first.end()
    await settle()
    assert third.inside.is_set()
    await third.end()
    assert locks.held() == 0


async def test_a_lock_given_to_a_call_cancelled_that_moment_is_passed_on(locks: FileLocks) -> None:
    first = Holder(locks, "/p/a")
    await first.inside.wait()
    second, third = Holder(locks, "/p/a"), Holder(locks, "/p/a")
    await settle()
    first.go.set()
    await first.task
    second.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second.task
    async with asyncio.timeout(5):
        await third.inside.wait()
    await third.end()
    assert locks.held() == 0


async def test_a_file_with_too_many_waiting_is_busy_at_once(locks: FileLocks) -> None:
    first = Holder(locks, "/p/a")
    await first.inside.wait()
    waiting = [Holder(locks, "/p/a") for _ in range(MAX_WAITERS)]
    await settle()
    with pytest.raises(FileBusy):
        async with locks.reading(ProjectPath("./a", "/p/a", "a")):
            pass
    for one in waiting:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in waiting), return_exceptions=True)
    await first.end()
    assert locks.held() == 0


async def test_other_files_are_not_touched(locks: FileLocks) -> None:
    async with locks.mutating(["/p/a"]), locks.mutating(["/p/b"]), locks.reading("/p/c"):
        assert locks.held() == 3
    assert locks.held() == 0
