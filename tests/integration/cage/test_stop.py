"""The stop ladder: ask, SIGTERM, SIGKILL, reap; and nothing left over."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kaged.cage import (
    CageProcess,
    CageRequest,
    Cause,
    Spawner,
    StopStep,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.waiting import readable
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
from requirements import requirement

TREE = "sleep 1000 & (setsid sleep 1001 &) ; (sleep 1002 &) ; "


def caged(script: str, *fs: FsGrant, limits: CageLimits | None = None) -> CageRequest:
    policy = CagePolicy(fs=fs, limits=limits or CageLimits())
    return CageRequest("test", policy, ("sh", "-c", script))


def uncaged(script: str) -> UncagedRequest:
    return UncagedRequest(
        "test", Uncaged("a test"), ("/bin/sh", "-c", script), env=(("PATH", "/usr/bin:/bin"),)
    )


async def line(process: CageProcess) -> bytes:
    """Read one line of its output; it has come so far then."""
    assert process.stdout_fd is not None
    said = b""
    while not said.endswith(b"\n"):
        said += await asyncio.to_thread(os.read, process.stdout_fd, 1)
    return said


def members(process: CageProcess) -> list[int]:
    """Find every living process of a cage, or of an uncaged process's session, by its session."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            namespace = str((entry / "ns/pid").readlink())
        except OSError:
            continue
        if fields[0] not in "ZX" and namespace == NAMESPACES.get(process.pid, "none"):
            found.append(int(entry.name))
    return found


NAMESPACES: dict[int, str] = {}


async def started(spawner: Spawner, request: CageRequest) -> CageProcess:
    process = await spawner.spawn(request)
    assert process.cage is not None
    await line(process)
    NAMESPACES[process.pid] = str(Path(f"/proc/{process.cage.init_pid}/ns/pid").readlink())
    assert members(process)
    return process


async def test_a_program_that_obeys_its_goodbye_is_not_signalled(spawner: Spawner) -> None:
    process = await started(spawner, caged("echo up; read x; exit 5"))

    async def ask() -> None:
        assert process.stdin_fd is not None
        os.write(process.stdin_fd, b"\n")

    stopped = await process.stop(20, ask)
    assert (stopped.step, stopped.exit.exit_code) == (StopStep.ASKED, 5)
    again = await process.stop(20, ask)
    assert (again.step, again.exit) == (StopStep.ALREADY, stopped.exit)
    process.close()


@requirement("PH-SUP-42")
async def test_sigterm_reaches_the_program_inside_and_sigkill_takes_the_cage(
    spawner: Spawner, place: Path
) -> None:
    """It writes a file on SIGTERM; another that ignores everything is gone with all it started."""
    grant = FsGrant(str(place), FsMode.RW)
    # It takes a second over its last words, and has two.
    recent_output = f"sleep 1; echo term > {place}/seen; exit 0"
    script = f"trap '{recent_output}' TERM; echo up; while :; do sleep 0.05; done"
    process = await started(spawner, caged(script, grant))
    stopped = await process.stop(0)
    assert stopped.step is StopStep.TERMINATED
    assert (place / "seen").read_text(encoding="utf-8") == "term\n"
    process.close()

    stubborn = await started(
        spawner, caged(f"trap '' TERM; {TREE} echo up; while :; do wait; done")
    )
    assert len(members(stubborn)) >= 4
    stopped = await stubborn.stop(0, term_grace_s=0.3)
    assert (stopped.step, stopped.exit.cause) == (StopStep.KILLED, Cause.STOPPED)
    assert members(stubborn) == []
    stubborn.close()


async def test_a_goodbye_that_fails_or_is_ignored_leads_to_the_next_step(spawner: Spawner) -> None:
    async def broken() -> None:
        raise ConnectionResetError

    async def ignored() -> None:
        await asyncio.sleep(0)

    for ask in (broken, ignored):
        process = await started(spawner, caged("echo up; exec sleep 1000"))
        stopped = await process.stop(0.1, ask)
        assert stopped.step is StopStep.TERMINATED
        assert stopped.exit.detail == "killed by SIGTERM"
        process.close()


@requirement("PH-SUP-41")
@pytest.mark.parametrize("way", ["stop", "kill", "exit", "close"])
async def test_no_process_of_a_cage_is_left_over(spawner: Spawner, way: str) -> None:
    process = await started(spawner, caged(f"{TREE} echo up; read x"))
    assert len(members(process)) >= 4
    match way:
        case "stop":
            await process.stop(0)
        case "kill":
            process.kill()
            process.kill()
        case "exit":
            os.close(process.take_fd("stdin"))
        case _:
            process.close()
    await process.wait()
    assert members(process) == []
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    process.close()


async def test_an_uncaged_process_takes_its_group_with_it(spawner: Spawner) -> None:
    for way in ("kill", "exit", "stop"):
        process = await spawner.spawn(uncaged("sleep 1000 & echo $!; read x"))
        child = os.pidfd_open(int(await line(process)))
        match way:
            case "kill":
                process.kill()
            case "exit":
                os.close(process.take_fd("stdin"))
            case _:
                await process.stop(0)
        await process.wait()
        process.close()
        async with asyncio.timeout(5):
            await readable(child)
        os.close(child)


async def test_a_cage_ends_when_its_time_is_over(spawner: Spawner) -> None:
    request = caged("trap '' TERM; echo up; while :; do sleep 1; done",
                    limits=CageLimits(walltime_sec=1))  # fmt: skip
    async with await spawner.spawn(request) as process:
        report = await process.wait()
    assert (report.cause, report.detail) == (Cause.WALLTIME, "killed: walltime limit 1 s")
    assert report.exit_code == 137


async def test_a_cage_that_ends_in_time_is_not_blamed(spawner: Spawner) -> None:
    async with await spawner.spawn(caged("exit 0", limits=CageLimits(walltime_sec=1))) as process:
        assert (await process.wait()).clean


async def test_cancelling_whoever_waits_does_not_disturb_the_process(spawner: Spawner) -> None:
    async with await spawner.spawn(caged("read x")) as process:
        waiting = asyncio.gather(process.wait(), return_exceptions=True)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert process.running
        os.close(process.take_fd("stdin"))
        assert (await process.wait()).exit_code == 1
