"""Attacks on the two moments when a cage is not simply there: its start, and the daemon's end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.cage.conftest import Events
from kaged.cage import (
    CageError,
    CageRequest,
    CageSettings,
    CageStartFailed,
    GrantRefused,
    Spawner,
    StopStep,
)
from kaged.cage.collect import collect
from kaged.cage.launchers import STOCK
from kaged.cage.setup_helper import SetupDone, SetupTask
from kaged.cage.startgate import StartGate
from kaged.cage.waiting import readable
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from security.cage.test_escapes import SOURCES, site_packages

DOOMED = Path(__file__).with_name("doomed.py")
RO, RW = FsMode.RO, FsMode.RW


def doomed(place: Path, cache: Path, how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a daemon with three cages; return it and pidfds of their first processes."""
    daemon = subprocess.Popen(
        [sys.executable, str(DOOMED), str(place), str(cache), how],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join([str(SOURCES), *site_packages()])},
    )
    assert daemon.stdout is not None
    lines = [daemon.stdout.readline() for _ in range(3)]
    return daemon, [os.pidfd_open(int(line)) for line in lines]


async def all_gone(cages: list[int]) -> None:
    async with asyncio.timeout(10):
        for cage in cages:
            await readable(cage)
            os.close(cage)


async def test_e52_a_daemon_killed_outright_takes_its_cages_with_it(
    place: Path, cage_cache: Path
) -> None:
    daemon, cages = doomed(place, cage_cache, "running")
    daemon.kill()
    await all_gone(cages)
    daemon.communicate()


async def test_e67_a_daemon_killed_while_cages_wait_at_their_start_releases_none(
    place: Path, cage_cache: Path
) -> None:
    """bwrap takes a closed pipe for its release, and is not yet tied to the daemon then."""
    daemon, cages = doomed(place, cage_cache, "waiting")
    daemon.kill()
    await all_gone(cages)
    daemon.communicate()
    assert not (place / "ran").exists()


async def test_e67_a_cage_whose_pipe_closes_is_not_released(
    spawner: Spawner, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's end closes without a word, before anything was killed."""
    seen: list[int] = []

    async def close_instead(gate: StartGate, child: object) -> None:
        gate.__exit__()
        seen.append(1)
        await asyncio.sleep(0.2)  # time in which a released command would have run
        raise CageStartFailed("never released")

    monkeypatch.setattr(StartGate, "release", close_instead)
    policy = CagePolicy(fs=(FsGrant(str(place), RW),))
    with pytest.raises(CageError):
        await spawner.spawn(CageRequest("t", policy, ("sh", "-c", f"echo ran > {place}/ran")))
    assert seen
    assert not (place / "ran").exists()


async def test_e67_an_exception_between_spawn_and_release_kills_the_cage(
    spawner: Spawner, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    async def fail(task: SetupTask) -> SetupDone:
        pids.append(os.pidfd_open(task.pid))
        raise RuntimeError("a bug")

    monkeypatch.setattr(spawner.setup_helper, "run", fail)
    policy = CagePolicy(fs=(FsGrant(str(place), RW),))
    with pytest.raises(RuntimeError):
        await spawner.spawn(CageRequest("t", policy, ("sh", "-c", f"echo ran > {place}/ran")))
    await all_gone(pids)
    assert not (place / "ran").exists()


async def test_e07_a_grant_replaced_by_a_link_before_the_spawn_is_refused(
    spawner: Spawner, place: Path, events: Events
) -> None:
    (place / "data").symlink_to("/etc")
    policy = CagePolicy(fs=(FsGrant(str(place / "data"), RO),))
    with pytest.raises(GrantRefused):
        await spawner.spawn(CageRequest("t", policy, ("true",)))
    assert events.names() == ["cage.refused"]


async def test_a_granted_child_swapped_for_a_link_between_two_spawns_is_refused(
    spawner: Spawner, place: Path, events: Events
) -> None:
    """The holder of the writable parent does the swap itself, from inside its cage."""
    child = place / "work/child"
    child.mkdir(parents=True)
    parent = FsGrant(str(place / "work"), RW)
    swap = f"cd {place}/work && rmdir child && ln -s /etc child"
    first = CageRequest("t", CagePolicy(fs=(parent,)), ("sh", "-c", swap))
    assert (await collect(await spawner.spawn(first))).report.exit_code == 0
    assert child.is_symlink()
    second = CageRequest(
        "t", CagePolicy(fs=(parent, FsGrant(str(child), RO))), ("sh", "-c", f"cat {child}/shadow")
    )
    with pytest.raises(GrantRefused, match="symbolic link"):
        await spawner.spawn(second)
    assert events.names()[-1] == "cage.refused"


async def test_a_child_swapped_again_and_again_while_cages_start_never_shows_the_target(
    spawner: Spawner, place: Path
) -> None:
    """A race: one cage flips a granted directory and a link; others start with that grant."""
    (place / "work/child").mkdir(parents=True)
    (place / "secret").mkdir()
    (place / "secret/token").write_text("sesame", encoding="utf-8")
    flip = (
        f"cd {place}/work; ln -s {place}/secret link; "
        "while [ ! -e stop ]; do mv child kept; mv link child; mv child link; mv kept child; done"
    )
    flipper = await spawner.spawn(
        CageRequest("t", CagePolicy(fs=(FsGrant(str(place / "work"), RW),)), ("sh", "-c", flip))
    )
    shown = refused = 0
    policy = CagePolicy(fs=(FsGrant(str(place / "work/child"), RO),))
    for _ in range(60):
        request = CageRequest("t", policy, ("sh", "-c", f"cat {place}/work/child/token"))
        try:
            done = await collect(await spawner.spawn(request))
        except CageError:
            refused += 1
            continue
        shown += 1
        assert b"sesame" not in done.stdout
    (place / "work/stop").touch()
    await collect(flipper)
    assert shown + refused == 60


async def test_e50_what_a_program_leaves_running_does_not_survive_it(spawner: Spawner) -> None:
    script = "(setsid sh -c 'trap \"\" HUP TERM; sleep 1000' &); (nohup sleep 1001 &) ; echo up"
    process = await spawner.spawn(CageRequest("t", CagePolicy(), ("sh", "-c", script)))
    assert process.cage is not None
    init = os.pidfd_open(process.cage.init_pid)
    await collect(process)
    await all_gone([init])


async def test_e51_a_program_that_ignores_everything_is_killed_in_time(spawner: Spawner) -> None:
    script = "trap '' TERM INT HUP QUIT; echo up; while :; do sleep 0.1; done"
    process = await spawner.spawn(CageRequest("t", CagePolicy(), ("sh", "-c", script)))
    assert process.stdout_fd is not None
    assert await asyncio.to_thread(os.read, process.stdout_fd, 10) == b"up\n"

    async def ask() -> None: ...

    stopped = await process.stop(0.1, ask, term_grace_s=0.2)
    assert stopped.step is StopStep.KILLED
    process.close()


async def test_e53_a_program_that_kills_everything_hits_only_its_cage(spawner: Spawner) -> None:
    neighbour = await spawner.spawn(CageRequest("n", CagePolicy(), ("cat",)))
    script = "kill -KILL 1; kill -KILL -1; sleep 1000 & kill -KILL -1; echo alive"
    done = await collect(await spawner.spawn(CageRequest("t", CagePolicy(), ("sh", "-c", script))))
    assert done.report is not None
    assert neighbour.running
    alive = await collect(neighbour, b"still here")
    assert alive.stdout == b"still here"


async def test_the_daemon_can_still_watch_files_beside_a_cage_that_watches_all_it_can(
    spawner: Spawner,
) -> None:
    """Cages share the daemon's uid on an ordinary host, and with it the ceiling of inotify."""
    program = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "held = 0\n"
        "while held < 5000 and libc.inotify_init1(0) >= 0: held += 1\n"
        "print(held, flush=True)\n"
        "sys.stdin.read()\n"
    )
    hoarders = [
        await spawner.spawn(CageRequest("t", CagePolicy(), ("/usr/bin/python3", "-c", program)))
        for _ in range(4)
    ]
    for one in hoarders:
        assert one.stdout_fd is not None
        assert int(await asyncio.to_thread(os.read, one.stdout_fd, 10)) <= 8
    import ctypes

    fd = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    assert fd >= 0
    os.close(fd)
    for one in hoarders:
        await collect(one)


async def test_e68_a_cage_is_not_started_from_a_thread_that_may_end(cage_cache: Path) -> None:
    """bwrap dies with the thread that started it, so such a start is refused at once."""

    def elsewhere() -> str:
        async def run() -> None:
            own = Spawner(CageSettings(cache_dir=cage_cache))
            try:
                await own.spawn(CageRequest("t", CagePolicy(), ("true",)))
            finally:
                await own.close()

        try:
            asyncio.run(run())
        except CageError as error:
            return error.code
        return "started"

    assert await asyncio.to_thread(elsewhere) == "cage_wrong_thread"


async def test_launchers_in_stock_end_with_their_daemon(place: Path, cage_cache: Path) -> None:
    daemon, cages = doomed(place, cage_cache, "running")
    try:
        async with asyncio.timeout(60):
            # The helper and its launchers, of which the last of three cages may have taken one.
            while len(found := launchers_of(daemon.pid)) < STOCK:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        watched = [os.pidfd_open(pid) for pid in found]
        for pid in found[1:]:  # all but the helper, as at the end of a start that failed
            os.kill(pid, signal.SIGSTOP)
    finally:
        daemon.kill()
        daemon.communicate()
    await all_gone([*watched, *cages])


def launchers_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    found: list[int] = []
    for word in text.split():
        with contextlib.suppress(OSError):  # it ended meanwhile
            named = b"launcher_main" in Path(f"/proc/{word}/cmdline").read_bytes()
            if named and os.getsid(int(word)) == int(word):  # it is ready
                found.append(int(word))
    return found


def test_the_steward_ends_with_its_daemon(place: Path, cage_cache: Path) -> None:
    daemon, cages = doomed(place, cage_cache, "running")
    setup_helpers = [
        int(word)
        for word in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        if b"setup_helper_main" in Path(f"/proc/{word}/cmdline").read_bytes()
    ]
    assert len(setup_helpers) == 1
    watched = os.pidfd_open(setup_helpers[0])
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.communicate()
    deadline = time.monotonic() + 10
    import select

    for fd in (watched, *cages):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready
        os.close(fd)
