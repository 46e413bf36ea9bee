"""Bridges without a cage that end in numbers, or whose host is killed: nobody else goes, all go."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.bridge_lab import alive, until
from fakes.stocked_cache import stocked
from kaged.cage import CageProcess, CageSettings, Spawner
from kaged.services.providers.bridge_command import BridgeSpec
from kaged.services.providers.bridge_process import BridgePlace, BridgeRunner

STALLED = Path(__file__).parent / "children" / "stalled_bridges.py"
SPAWNS = 200
AT_ONCE = 24
# A bridge that leaves a program behind, says its number, and waits for somebody to end it.
SCRIPT = "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!; exec sleep 600"
ENV = (("PATH", "/usr/bin:/bin"),)


@pytest.fixture
async def spawner(tmp_path: Path) -> AsyncIterator[Spawner]:
    found = Spawner(CageSettings(cache_dir=stocked(tmp_path / "cache"), ask_systemd=False))
    yield found
    await found.close()


async def _said(process: CageProcess) -> int:
    assert process.stdout_fd is not None
    return int(await asyncio.to_thread(os.read, process.stdout_fd, 32))


@pytest.mark.timeout(180)
async def test_no_bridge_dies_of_another_ones_end(tmp_path: Path, spawner: Spawner) -> None:
    """Two hundred starts with endings in between; each ending takes its own and nobody else."""
    command = ("/bin/sh", "-c", SCRIPT)
    place = BridgePlace(command, ENV, tmp_path / "bridges")
    runner = BridgeRunner(BridgeSpec("b", "b", command), place, spawner, asyncio.Semaphore(1))
    chance = random.Random(7)
    living: list[tuple[CageProcess, int]] = []
    gone: list[int] = []
    for _ in range(SPAWNS):
        process = await runner.spawn()
        living.append((process, await _said(process)))
        while len(living) > AT_ONCE or (living and chance.random() < 0.4):
            ended, left = living.pop(chance.randrange(len(living)))
            assert ended.running  # nobody but this test ended it
            assert alive(left)
            ended.close()
            gone.append(left)
    await until(lambda: not any(alive(left) for left in gone))
    assert len(gone) > SPAWNS // 2
    assert living
    for process, left in living:
        assert process.running
        assert alive(left)
    await runner.close()
    assert not any(process.running or alive(left) for process, left in living)


@pytest.mark.timeout(120)
async def test_a_host_that_is_killed_takes_its_bridges_and_what_left_them_along(
    tmp_path: Path,
) -> None:
    host = subprocess.Popen(
        [sys.executable, str(STALLED), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    pids = [int(await asyncio.to_thread(host.stdout.readline)) for _ in range(6)]
    assert all(alive(pid) for pid in pids)
    host.kill()
    await asyncio.to_thread(host.communicate)
    await until(lambda: not any(alive(pid) for pid in pids))
