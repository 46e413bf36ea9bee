"""Limits on this machine: what a cage may use, and what is said when it wanted more."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from integration.cage.conftest import Events
from kaged.cage import CageRequest, CageSettings, CageUnavailable, Cause, Spawner
from kaged.cage.collect import Collected, collect
from kaged.cage.identity import IdentityMode
from kaged.cage.limits import LimitedResource, choose_backend, tree
from kaged.kernel.policy import CageLimits, CagePolicy

HOG = "x = bytearray()\nwhile True: x += b'x' * 1048576\n"
FORKS = (
    "import os, time\n"
    "made = 0\n"
    "try:\n"
    "    while made < 200:\n"
    "        if os.fork() == 0: time.sleep(60)\n"
    "        made += 1\n"
    "except OSError as error: print(error.strerror)\n"
    "print(made)\n"
)


@pytest.fixture(params=["strongest", "rlimits"])
async def limited(
    request: pytest.FixtureRequest, cage_cache: Path, events: Events
) -> AsyncIterator[Spawner]:
    """A spawner with the strongest back end, and one with none but rlimits."""
    settings = CageSettings(
        cache_dir=cage_cache,
        allow_cgroups=request.param == "strongest",
        identity=IdentityMode.SEPARATE if os.geteuid() == 0 else IdentityMode.AUTO,
    )
    found = Spawner(settings, on_event=events)
    yield found
    await found.close()


async def python(spawner: Spawner, program: str, **limits: int) -> Collected:
    request = CageRequest(
        "test", CagePolicy(limits=CageLimits(**limits)), ("/usr/bin/python3", "-c", program)
    )
    return await collect(await spawner.spawn(request))


async def test_a_memory_hog_is_stopped_and_the_cause_is_told(
    limited: Spawner, events: Events
) -> None:
    done = await python(limited, HOG, memory_mb=96)
    if LimitedResource.MEMORY in limited.backend.enforces:
        assert done.report.detail == "killed: memory limit 96 MiB"
        assert (done.report.cause, done.report.exit_code) == (Cause.MEMORY, 137)
        assert events.last("cage.exited")["cause"] == "oom"
    else:
        assert b"MemoryError" in done.stderr


@pytest.mark.needs_root
async def test_scratch_space_counts_as_memory_where_a_cgroup_counts(spawner: Spawner) -> None:
    if LimitedResource.MEMORY not in spawner.backend.enforces:
        pytest.skip("rlimits do not count scratch space; its size is limited by its mount")
    program = (
        "for n in range(300):\n    with open(f'/tmp/{n}', 'wb') as f: f.write(b'x' * 1048576)\n"
    )
    done = await python(spawner, program, memory_mb=64, tmpfs_mb=1024)
    assert done.report.detail == "killed: memory limit 64 MiB"


async def test_a_fork_bomb_is_held_at_its_number(limited: Spawner) -> None:
    done = await python(limited, FORKS, pids=20)
    said = done.stdout.decode().split("\n")
    assert said[0] == "Resource temporarily unavailable"
    assert int(said[1]) == 19  # the program itself is one
    if LimitedResource.PIDS in limited.backend.enforces:
        assert done.report.forks_refused >= 1


@pytest.mark.needs_root
async def test_a_program_that_dies_of_the_process_limit_is_told_so(spawner: Spawner) -> None:
    if LimitedResource.PIDS not in spawner.backend.enforces:
        pytest.skip("without a cgroup nobody counts refusals")
    done = await python(spawner, "import os\nwhile True: os.fork() or os.pause()", pids=9)
    assert done.report.detail == "exited with 1 (process limit 9 was reached)"


async def test_open_files_and_file_size_are_limited(limited: Spawner) -> None:
    program = (
        "import os\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', 0))\n"
        "except OSError as error: print(error.strerror, held[-1])\n"
    )
    done = await python(limited, program, open_files=50)
    assert done.stdout == b"Too many open files 49\n"
    request = CageRequest(
        "test",
        CagePolicy(limits=CageLimits(file_size_mb=1, tmpfs_mb=16)),
        ("sh", "-c", "exec head -c 9000000 /dev/zero > /tmp/big"),
    )
    report = (await collect(await limited.spawn(request))).report
    assert (report.cause, report.detail) == (Cause.FILE_SIZE, "killed: file size limit 1 MiB")


async def test_scratch_space_has_its_size(limited: Spawner) -> None:
    request = CageRequest(
        "test",
        CagePolicy(limits=CageLimits(tmpfs_mb=2)),
        ("sh", "-c", "for d in /tmp /dev/shm /run; do head -c 3000000 /dev/zero > $d/x; done"),
    )
    done = await collect(await limited.spawn(request))
    assert done.stderr.count(b"No space left on device") == 3


@pytest.mark.needs_root
async def test_use_can_be_read_while_it_runs(spawner: Spawner) -> None:
    if LimitedResource.PIDS not in spawner.backend.enforces:
        pytest.skip("without a cgroup nobody counts")
    request = CageRequest("test", CagePolicy(), ("sh", "-c", "read x"))
    async with await spawner.spawn(request) as process:
        stat = process.stat()
    assert stat.processes is not None
    assert 1 <= stat.processes <= 3
    assert stat.memory_bytes is not None


@pytest.mark.needs_root
async def test_groups_are_gone_after_the_end(cage_cache: Path) -> None:
    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    if LimitedResource.PIDS not in spawner.backend.enforces:
        pytest.skip("there are no groups without a cgroup back end")
    for _ in range(3):
        await collect(await spawner.spawn(CageRequest("test", CagePolicy(), ("true",))))
    await spawner.close()
    left = [
        path
        for mount in tree.cgroup_mounts()
        for path in mount.folder.glob(f"{tree.instance_name()}*/**")
    ]
    assert left == []


async def test_two_spawners_of_one_process_do_not_meet(cage_cache: Path, spawner: Spawner) -> None:
    """A daemon that is asked for its doctor's rows runs trial cages beside its own."""
    request = CageRequest("test", CagePolicy(), ("sh", "-c", "read x; exit 3"))
    mine = await spawner.spawn(request)
    other = Spawner(CageSettings(cache_dir=cage_cache))
    assert (await collect(await other.spawn(request))).report.exit_code == 3
    await other.close()
    assert mine.running
    assert (await collect(mine)).report.exit_code == 3
    assert (await collect(await spawner.spawn(request))).report.exit_code == 3


@pytest.mark.needs_root
async def test_groups_of_a_dead_daemon_are_swept(cage_cache: Path) -> None:
    backend = choose_backend()
    if backend.name != "cgroup1":
        pytest.skip("made for cgroup version 1")
    roots = [one.folder for one in tree.cgroup_mounts() if one.controllers & {"pids", "memory"}]
    # A process id that no process can have; the rest is ours, as the kernel has one tree for all.
    name = f"kaged-4194305-{os.getpid()}"
    for root in roots:
        with contextlib.suppress(FileNotFoundError):
            (root / name / "cage-1").mkdir(parents=True)
    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    # Another daemon (or test) that starts at this moment may sweep them first, or half made.
    assert spawner.swept <= len(roots)
    async with asyncio.timeout(30):
        while any((root / name).exists() for root in roots):  # noqa: ASYNC110 - nobody tells us when a directory goes
            await asyncio.sleep(0)
    await spawner.close()


@pytest.mark.needs_root
async def test_a_root_cage_is_refused_where_processes_cannot_be_counted(
    cage_cache: Path, events: Events
) -> None:
    """The kernel does not enforce the per-process limit for uid 0."""
    settings = CageSettings(cache_dir=cage_cache, allow_cgroups=False, identity=IdentityMode.ROOT)
    spawner = Spawner(settings, on_event=events)
    with pytest.raises(CageUnavailable, match="uid 0") as caught:
        await spawner.spawn(CageRequest("test", CagePolicy(), ("true",)))
    assert caught.value.row == "cage.limits"
    assert events.names() == ["cage.refused"]
    await spawner.close()


@pytest.mark.parametrize("limits", [{"pids": 0}, {"memory_mb": 0}, {"open_files": -1}])
async def test_limits_that_limit_nothing_are_refused(
    spawner: Spawner, limits: dict[str, int]
) -> None:
    from kaged.cage import PolicyConflict

    with pytest.raises(PolicyConflict, match=next(iter(limits))):
        await python(spawner, "", **limits)
