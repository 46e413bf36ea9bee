"""Lua scripts: an event's round trip against a plugin call, memory at rest, the end of a loop.

The round trips take turns in short rounds on one CPU, as those of `bench_plugin_call` do, whose
plugin is the peer. The memory is that of the workers and of what holds their cages, as
proportional shares; the loop's end is measured from the moment its budget of time is spent.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from scoreboard import Row, at_most, row, show

ROUNDS = 25
CALLS = 200
SCRIPTS = 20
ENDS = 5
BUDGET_S = 0.5

SOURCE = "kage.on('turn_end', function(event) seen = event.index end)"
LOOP = """
kage.register_command{name='loop', description='', handler=function()
  return ('a'):rep(300000):find(('a-'):rep(60) .. 'b') end}
"""


def run() -> list[Row]:
    """Measure and return the rows of the table."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        ours, plugin = uvloop.run(_round_trips())
    finally:
        os.sched_setaffinity(0, before)
    ratio = statistics.median(a / b for a, b in zip(ours, plugin, strict=True))
    memory_mib = uvloop.run(_memory())
    late_s = uvloop.run(_ends())
    return [
        row(
            "event to a script and back, caged worker",
            statistics.median(ours),
            "µs",
            against="plugin method round trip",
            peer=statistics.median(plugin),
            ratio=ratio,
            target=at_most(1.5, ratio, "x"),
            samples=ours,
        ),
        row(
            f"{SCRIPTS} scripts at rest, workers and their cages",
            memory_mib,
            "MiB",
            target=at_most(400, memory_mib, "MiB"),
        ),
        row(
            f"a script that no hook can stop is gone after its budget, worst of {ENDS}",
            max(late_s),
            "s",
            target=at_most(0.3, max(late_s), "s"),
            samples=late_s,
        ),
    ]


class _Host:
    """A host that scripts of this benchmark ask nothing."""

    async def call(self, worker: Any, method: str, params: Any) -> Any:
        return None

    def told(self, worker: Any, method: str, params: Any) -> None:
        return

    async def returned(self, worker: Any) -> None:
        return

    def registered(self, script: Any) -> None:
        return

    def ended(self, script: Any, reason: str) -> None:
        return


@asynccontextmanager
async def _scripts(
    count: int, source: str, compute_s: float = 10.0
) -> AsyncGenerator[tuple[list[Any], Any]]:
    from kaged.base import SystemClock
    from kaged.cage import CageSettings, Spawner
    from kaged.lua.folder import ScriptFile
    from kaged.lua.limits import ScriptLimits
    from kaged.lua.script import Script, ScriptParts

    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-"))
    folder.chmod(0o755)
    spawner = Spawner(CageSettings(cache_dir=folder / "cache"))
    parts = ScriptParts(
        spawner, SystemClock(), ScriptLimits(compute_s=compute_s), _Host(), "0", sleep=_never
    )
    made = [
        Script(ScriptFile(f"s{number}", "", source), frozenset(), {}, parts)
        for number in range(count)
    ]
    try:
        for script in made:
            await script.start()
            assert script.state == "running", script.error
        yield made, spawner
    finally:
        for script in made:
            await script.stop()
        await spawner.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _never(_seconds: float) -> None:
    import asyncio

    await asyncio.Event().wait()


async def _round_trips() -> tuple[list[float], list[float]]:
    from bench_plugin_call import _plugin
    from kaged.wire.context import WireContext

    context = WireContext(request_id="req", operator_id="op")
    ours: list[float] = []
    peer: list[float] = []
    async with _plugin() as (plugin, _), _scripts(1, SOURCE) as ((script,), _):

        async def event() -> None:
            payload = {"index": 1, "had_tool_calls": False}
            await script.ask("event", {"name": "turn_end", "payload": payload})

        async def call() -> None:
            await plugin.call_method("echo.say", {"x": 1}, context)

        for _ in range(ROUNDS):
            ours.append(await _median_us(event))
            peer.append(await _median_us(call))
    return ours, peer


async def _memory() -> float:
    async with _scripts(SCRIPTS, SOURCE) as (_, spawner):
        pids: list[int] = []
        for process in spawner.running:
            pids += [process.pid, *_below(process.pid)]
        return sum(_share_kib(pid) for pid in pids) / 1024


async def _ends() -> list[float]:
    from kaged.lua.errors import ScriptDown

    late: list[float] = []
    for _ in range(ENDS):
        async with _scripts(1, LOOP, BUDGET_S) as ((script,), _):
            started = time.perf_counter()
            try:
                await script.ask("command", {"name": "loop", "raw": ""})
            except ScriptDown:
                late.append(time.perf_counter() - started - BUDGET_S)
            else:
                raise AssertionError("the loop ended by itself")
    return late


def _below(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    found: list[int] = []
    for word in text.split():
        found += [int(word), *_below(int(word))]
    return found


def _share_kib(pid: int) -> int:
    for worker in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if worker.startswith("Pss:"):
            return int(worker.split()[1])
    return 0


async def _median_us(call: Any) -> float:
    for _ in range(20):
        await call()
    times: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    show(run())
