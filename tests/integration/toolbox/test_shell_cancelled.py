"""A command that is given up while it starts: nothing of it is left, whenever that is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from fakes.stocked_cache import stocked
from kaged.base import Tasks
from kaged.cage import CageSettings, Spawner
from kaged.toolbox.shell.broker import PtyBroker
from kaged.toolbox.shell.launch import ShellCommand, launch_uncaged

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
MOMENTS = 12


def _terminals() -> int:
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            found += fd.readlink() == Path("/dev/ptmx")
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_a_command_that_is_cancelled_while_it_starts_is_gone(tmp_path: Path, loop: str) -> None:
    async def work() -> None:
        spawner = Spawner(CageSettings(cache_dir=stocked(tmp_path / "cache"), ask_systemd=False))
        broker = PtyBroker()
        tasks = Tasks("test", lambda _name, _error: None)
        before = _terminals()
        for moment in range(MOMENTS):
            command = ShellCommand(f"req_{moment}", "primary", "sleep 600", str(tmp_path), {})

            async def run(one: ShellCommand = command) -> None:
                session = await broker.spawn(
                    one.request_id, lambda: launch_uncaged(spawner, one, dict(os.environ), ())
                )
                await broker.dispose(session)

            starting = tasks.start(run(), "run")
            for _ in range(moment):
                await asyncio.sleep(0)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            assert broker.scrollback(command.request_id) is None
        async with asyncio.timeout(20):
            while spawner.running or _terminals() > before:  # noqa: ASYNC110 - the kernel's pace
                await asyncio.sleep(0.01)
        await broker.dispose_all()
        await spawner.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(work())
