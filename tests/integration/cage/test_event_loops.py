"""The spawner on the daemon's own event loop, which is not asyncio's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
import uvloop

from kaged.cage import (
    CageRequest,
    CageSettings,
    Pipes,
    Pty,
    Spawner,
    StopStep,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.child import Child
from kaged.cage.collect import collect
from kaged.cage.request import Stdio
from kaged.kernel.policy import CageLimits, CagePolicy


def test_everything_works_on_uvloop(cage_cache: Path) -> None:
    async def main() -> None:
        spawner = Spawner(CageSettings(cache_dir=cage_cache))

        def caged(script: str, stdio: Stdio | None = None) -> CageRequest:
            policy = CagePolicy(limits=CageLimits(walltime_sec=30))
            return CageRequest("test", policy, ("sh", "-c", script), stdio=stdio or Pipes())

        done = await collect(await spawner.spawn(caged("cat; exit 3")), b"hello")
        assert (done.stdout, done.report.exit_code) == (b"hello", 3)
        done = await collect(await spawner.spawn(caged("tty; stty size", stdio=Pty(12, 34))))
        assert b"12 34" in done.stdout
        stubborn = await spawner.spawn(caged("trap '' TERM; echo up; while :; do sleep 1; done"))
        assert stubborn.stdout_fd is not None
        assert await asyncio.to_thread(os.read, stubborn.stdout_fd, 3) == b"up\n"
        stopped = await stubborn.stop(term_grace_s=0.2)
        assert stopped.step is StopStep.KILLED
        stubborn.close()
        bare = UncagedRequest("test", Uncaged("a test"), ("/bin/sh", "-c", "exit 4"))
        assert (await collect(await spawner.spawn(bare))).report.exit_code == 4
        crowd = await asyncio.gather(*(spawner.spawn(caged("read x")) for _ in range(8)))
        for one in crowd:
            one.close()
        await spawner.close()
        assert spawner.running == frozenset()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_process_that_is_killed_is_reaped_at_once_on_uvloop() -> None:
    """Uvloop makes the pidfd non-blocking: a wait for it would fail, and leave all behind."""

    async def main() -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
            child = Child(process.pid, process)
            child.kill_group_now()
            assert not child.running
            assert await child.exited == -signal.SIGKILL
            with pytest.raises(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
