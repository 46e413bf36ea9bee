"""A cage whose processes rest is known to rest; one that has run, however shortly, to have run."""

from __future__ import annotations

import asyncio
import os

from kaged.cage import CageKind, CageProcess, CageRequest, Spawner
from kaged.cage.protected.activity import Activity, read_activity
from kaged.kernel.policy import CagePolicy

SCRIPT = "cat & while read -r line; do echo $line; done"


async def at_rest(pid: int) -> Activity:
    """Return the activity of a cage as soon as it stays the same."""
    before: Activity | None = None
    async with asyncio.timeout(30):
        while True:
            now = await asyncio.to_thread(read_activity, pid)
            if now is not None and now == before:
                return now
            before = now
            await asyncio.sleep(0)


async def asked(process: CageProcess, word: bytes) -> bytes:
    """Return what a process answers to a word."""
    assert process.stdin_fd is not None
    assert process.stdout_fd is not None
    os.write(process.stdin_fd, word)
    return await asyncio.to_thread(os.read, process.stdout_fd, 100)


async def test_a_cage_that_answered_has_run_and_one_that_waits_has_not(spawner: Spawner) -> None:
    request = CageRequest("rest", CagePolicy(), ("sh", "-c", SCRIPT), kind=CageKind.AGENT)
    async with await spawner.spawn(request) as process:
        assert process.cage is not None
        pid = process.cage.init_pid
        assert await asked(process, b"one\n") == b"one\n"
        first = await at_rest(pid)
        assert len(first) >= 2  # the cage's first process, and the shell
        assert read_activity(pid) == first
        for word in (b"two\n", b"three\n"):
            assert await asked(process, word) == word
            later = await at_rest(pid)
            assert later != first
            first = later
    assert read_activity(pid) is None
