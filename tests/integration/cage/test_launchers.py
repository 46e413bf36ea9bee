"""Launchers in stock: a cage that starts from one is the cage that starts from scratch."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.signal_masks import settable
from kaged.cage import CageRequest, CageSettings, CageUnavailable, Spawner
from kaged.cage.collect import collect
from kaged.cage.facts import gather_facts
from kaged.cage.launcher_main import MAX_DESCRIPTORS, MAX_ORDER_BYTES
from kaged.cage.launchers import STOCK
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

QUIET = CageRequest("test", CagePolicy(), ("true",))
# Everything a program can see of how it came to be.
FACTS = (
    "umask; pwd; env; id; ls -l /proc/self/fd /proc/1/fd; cat /proc/self/limits /proc/self/cgroup; "
    "cat /proc/1/cmdline /proc/1/environ; cat /proc/1/status /proc/self/status"
)
_KEPT = re.compile(
    r"(Umask|Uid|Gid|Groups|NSpid|NSsid|NSpgid|NoNewPrivs|Seccomp|Seccomp_filters|Threads|"
    r"Sig\w+|Shd\w+|Cap\w+):"
)


@pytest.fixture
async def stocked(cage_cache: Path) -> AsyncIterator[Spawner]:
    """A spawner with launchers in stock."""
    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    await fill(spawner)
    yield spawner
    await spawner.close()


async def fill(spawner: Spawner) -> None:
    async with asyncio.timeout(30):
        while not spawner.launchers.in_stock:
            await collect(await spawner.spawn(QUIET))
        while spawner.launchers.in_stock < STOCK:  # noqa: ASYNC110 - other processes make them
            await asyncio.sleep(0.005)


def our_children() -> set[int]:
    return {
        int(word)
        for task in Path("/proc/self/task").iterdir()
        for word in (task / "children").read_text(encoding="ascii").split()
    }


async def facts(spawner: Spawner, place: Path) -> tuple[bool, list[str]]:
    """Start a cage; return whether it came from stock, and what it sees."""
    known = spawner.launchers.pids
    policy = CagePolicy(fs=(FsGrant(str(place), FsMode.RW),))
    process = await spawner.spawn(CageRequest("test", policy, ("sh", "-c", FACTS)))
    done = await collect(process)
    assert done.report.exit_code == 0, done.stderr
    text = re.sub(rb"--args\0\d+", b"--args", done.stdout).decode(errors="replace")
    # Numbers of pipes, and times; one that is a tick ahead of the clock is shown with its year.
    text = re.sub(r"\[\d+\]|\w{3} +\d+ +(\d\d:\d\d|\d{4})\b", "", text)
    lines = text.replace("\0", "\n").splitlines()
    status = [line for line in lines if re.match(r"\w+:\t", line)]
    return process.pid in known, [
        line for line in lines if line not in status or _KEPT.match(line) is not None
    ]


async def test_a_cage_from_stock_sees_what_a_cage_from_scratch_sees(
    stocked: Spawner, place: Path
) -> None:
    from_stock, new = await facts(stocked, place)
    stocked.launchers.close()
    still_from_stock, old = await facts(stocked, place)
    assert (from_stock, still_from_stock) == (True, False)
    assert new == old
    # Of the first process in the cage and of the program.
    assert [settable(line.split()[1]) for line in new if line.startswith("SigIgn:")] == [0, 0]


async def test_a_cage_has_the_processors_and_limits_that_the_daemon_has_now(
    stocked: Spawner,
) -> None:
    before = os.sched_getaffinity(0)
    known = stocked.launchers.pids
    os.sched_setaffinity(0, {min(before)})
    try:
        narrow = await stocked.spawn(CageRequest("test", CagePolicy(), ("nproc",)))
        done = await collect(narrow)
    finally:
        os.sched_setaffinity(0, before)
    assert done.stdout == b"1\n"
    if len(before) > 1:
        assert narrow.pid not in known
    await fill(stocked)
    assert (await collect(await stocked.spawn(QUIET))).report.exit_code == 0


async def test_the_words_of_a_command_arrive_as_they_are(stocked: Spawner) -> None:
    known = stocked.launchers.pids
    words = ("a\nb", "", " ", "--args", "\udcff", "ü")
    script = ("sh", "-c", 'printf "%s|" "$@"', "sh", *words)
    process = await stocked.spawn(CageRequest("test", CagePolicy(), script))
    assert process.pid in known
    assert (await collect(process)).stdout == b"a\nb|| |--args|\xff|\xc3\xbc|"


async def test_a_command_line_that_is_too_long_for_an_order_starts_from_scratch(
    stocked: Spawner,
) -> None:
    known = stocked.launchers.pids
    long = "x" * (MAX_ORDER_BYTES + 1)
    process = await stocked.spawn(
        CageRequest("test", CagePolicy(), ("sh", "-c", 'printf "%s" "${#1}"', "sh", long))
    )
    assert process.pid not in known
    assert (await collect(process)).stdout == str(len(long)).encode()


async def test_every_launcher_serves_one_cage_and_new_ones_take_its_place(stocked: Spawner) -> None:
    waiting = set(stocked.launchers.pids)
    used: set[int] = set()
    for _ in range(STOCK):
        process = await stocked.spawn(QUIET)
        used.add(process.pid)
        await collect(process)
    assert len(used) == STOCK
    assert used < waiting
    await fill(stocked)
    assert used.isdisjoint(stocked.launchers.pids)
    assert used.isdisjoint(our_children())


async def test_a_launcher_that_was_killed_is_passed_over(stocked: Spawner) -> None:
    helper, *waiting = stocked.launchers.pids
    for pid in waiting[:-1]:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process = await stocked.spawn(QUIET)
    assert process.pid == waiting[-1]
    assert (await collect(process)).report.exit_code == 0
    assert our_children().isdisjoint(waiting)
    assert helper in our_children()


async def test_cages_start_when_the_helper_is_dead(stocked: Spawner) -> None:
    os.kill(stocked.launchers.pids[0], signal.SIGKILL)
    for _ in range(STOCK + 2):
        assert (await collect(await stocked.spawn(QUIET))).report.exit_code == 0


async def test_a_cage_with_more_descriptors_than_fit_starts_from_scratch(
    stocked: Spawner, place: Path
) -> None:
    names = [f"{number:03}" for number in range(MAX_DESCRIPTORS)]
    for name in names:
        (place / name).touch()
    grants = tuple(FsGrant(str(place / name), FsMode.RO) for name in names)
    request = CageRequest("test", CagePolicy(fs=grants), ("ls", str(place)))
    known = stocked.launchers.pids
    process = await stocked.spawn(request)
    assert process.pid not in known
    assert (await collect(process)).stdout.split() == [name.encode() for name in names]


async def test_a_launcher_that_finds_no_bwrap_names_the_row_of_doctor(
    cage_cache: Path, place: Path
) -> None:
    host = gather_facts(cage_cache)
    assert host.bwrap is not None
    bwrap = place / "bwrap"
    bwrap.symlink_to(host.bwrap)
    spawner = Spawner(CageSettings(cache_dir=cage_cache), facts=replace(host, bwrap=str(bwrap)))
    await fill(spawner)
    bwrap.unlink()
    with pytest.raises(CageUnavailable) as caught:
        await spawner.spawn(QUIET)
    assert caught.value.data["row"] == "cage.bwrap"
    assert spawner.running == frozenset()
    assert spawner.launchers.in_stock == STOCK - 1
    await spawner.close()


async def test_closing_leaves_no_launcher_and_no_zombie(cage_cache: Path) -> None:
    before = our_children()
    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    await fill(spawner)
    for _ in range(STOCK):
        await collect(await spawner.spawn(QUIET))
    await spawner.close()  # with new launchers on their way
    assert our_children() == before
