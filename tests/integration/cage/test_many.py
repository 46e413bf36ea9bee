"""Many spawns, one after the other and at once: no descriptor, process, mount or group is left."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

from kaged.cage import CageProcess, CageRequest, CageSettings, GrantRefused, Spawner, Uncaged
from kaged.cage.collect import collect
from kaged.cage.limits import tree
from kaged.cage.request import UncagedRequest
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from thorough import THOROUGH

# In ten rounds every kind of start comes; in a short run each is begun while others end.
ROUNDS = 1000 if THOROUGH else 200
CROWD = 200 if THOROUGH else 60
AT_ONCE = 16


def descriptors() -> set[str]:
    gc.collect()
    found: set[str] = set()
    for one in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{one.name} {one.readlink()}")
        except OSError:
            continue
    return found


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines())


def groups() -> list[Path]:
    return [
        path
        for mount in tree.cgroup_mounts()
        for path in mount.folder.glob(f"{tree.instance_name()}/*cage-*")
    ]


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        text = (task / "children").read_text(encoding="ascii")
        found |= {int(word) for word in text.split()}
    return found


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_hundreds_of_spawns_leave_nothing_behind(spawner: Spawner, place: Path) -> None:
    grant = FsGrant(str(place), FsMode.RO)
    policy = CagePolicy(fs=(grant,))
    good = CageRequest("test", policy, ("sh", "-c", "cat; exit 1"))
    bare = UncagedRequest("test", Uncaged("a test"), ("/bin/sh", "-c", "exit 1"))
    missing = FsGrant(str(place / "missing"), FsMode.RO)
    bad = CageRequest("test", CagePolicy(fs=(grant, missing)), ("true",))
    await collect(await spawner.spawn(good))
    spawner.launchers.close()  # those in stock wait for the next cage; they are nobody's leftover
    before, mounted, known = descriptors(), mounts(), children()
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with limit:
            if number % 10 == 9:
                try:
                    await spawner.spawn(bad)
                except GrantRefused:
                    return
            request = bare if number % 10 == 8 else good
            done = await collect(await spawner.spawn(request), b"x")
            assert done.report.exit_code == 1

    await asyncio.gather(*(one(number) for number in range(ROUNDS)))
    spawner.launchers.close()
    assert descriptors() == before
    assert mounts() == mounted
    assert children() == known
    assert spawner.running == frozenset()


@pytest.mark.thorough
async def test_a_crowd_of_cages_at_once_then_stopped_leaves_nothing(cage_cache: Path) -> None:
    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    await collect(await spawner.spawn(CageRequest("test", CagePolicy(), ("true",))))
    spawner.launchers.close()
    before, mounted, known = descriptors(), mounts(), children()
    request = CageRequest("test", CagePolicy(), ("sh", "-c", "sleep 1000 & echo up; read x"))
    limit = asyncio.Semaphore(AT_ONCE)

    async def start() -> CageProcess:
        async with limit:
            process = await spawner.spawn(request)
            assert process.stdout_fd is not None
            assert await asyncio.to_thread(os.read, process.stdout_fd, 3) == b"up\n"
            return process

    crowd = await asyncio.gather(*(start() for _ in range(CROWD)))
    assert len(spawner.running) == CROWD
    namespaces = {
        str(Path(f"/proc/{one.cage.init_pid}/ns/pid").readlink()) for one in crowd if one.cage
    }
    assert len(namespaces) == CROWD
    for process in crowd:
        process.close()
    await asyncio.gather(*(process.wait() for process in crowd))
    spawner.launchers.close()
    assert descriptors() == before
    assert mounts() == mounted
    assert children() == known
    assert _living_in(namespaces) == []
    await spawner.close()
    assert groups() == []


def _living_in(namespaces: set[str]) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str((entry / "ns/pid").readlink()) in namespaces:
                    found.append(entry.name)
            except OSError:
                continue
    return found
