"""The agent loop without the model: what a step costs, and how late events are with 200 sessions.

Everything but the model is real: store, transcript, audit log in SQLite, dispatcher with the sinks
that the daemon gives it, event ring. A step is a model turn that calls an empty tool: its two
entries are durable before the next one.
Run it alone with `python benchmarks/bench_loop.py`; `run()` returns the suite's rows.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from kaged.base import Tasks
from kaged.kernel.kept_actor import KeptActor
from scoreboard import Row, at_most, row, show

STEPS = 200
ROUNDS = 5
STEP_TARGET_MS = 2.0
SESSIONS = 200
SESSION_STEPS = 5
WORDS = 10
PACE_S = 0.02
LATENCY_TARGET_MS = 100.0

PROJECT_FILE = """\
version: 1
project: bench
primary:
  model: bench
  system_prompt: You work.
  max_steps: 100000
  tools: {file.nothing: {enabled: true}, 'kaged.*': {enabled: false}}
"""


def run() -> list[Row]:
    """Measure and return the rows of the table."""
    steps_ms, commits_ms, latencies_ms, wall_s = uvloop.run(_measured())
    step_ms = statistics.median(steps_ms)
    p99 = statistics.quantiles(latencies_ms, n=100)[98]
    return [
        row(
            "agent loop, overhead per step: a turn, a tool call, two durable entries",
            step_ms,
            "ms",
            against="two bare SQLite commits, same disk",
            peer=commits_ms,
            target=at_most(STEP_TARGET_MS, step_ms, "ms"),
            samples=steps_ms,
        ),
        row(
            f"event latency, p99, {SESSIONS} sessions at once ({len(latencies_ms)} words in "
            f"{wall_s:.1f} s)",
            p99,
            "ms",
            against="median of the same run",
            peer=statistics.median(latencies_ms),
            target=at_most(LATENCY_TARGET_MS, p99, "ms"),
        ),
    ]


class BenchModel:
    """Calls the empty tool `steps` times and then is done; says `words` words, `pace_s` apart."""

    def __init__(self, steps: int, words: int = 0, pace_s: float = 0.0) -> None:
        self.alias = "bench"
        self.context_tokens = 10_000_000
        self._steps = steps
        self._words = words
        self._pace_s = pace_s

    async def stream(self, request: Any) -> AsyncGenerator[Any]:
        """Play the next turn; which one is read from the window."""
        from kaged.models.turn import (
            AssistantMessage,
            ModelToolCall,
            ModelTurn,
            TextDelta,
            TurnFinished,
        )

        done = sum(isinstance(one, AssistantMessage) for one in request.messages)
        for _ in range(self._words):
            await asyncio.sleep(self._pace_s)
            yield TextDelta(f"{time.perf_counter()}")
        calls = () if done >= self._steps else (ModelToolCall(f"c{done}", "file_nothing", {}),)
        yield TurnFinished(ModelTurn(AssistantMessage("ok", calls)))


@dataclass
class _Models:
    model: BenchModel

    def get(self, alias: str, project_id: str) -> BenchModel:
        del alias, project_id
        return self.model


class _NoHooks:
    """No plugin takes part."""

    def participants(self, project_id: str, agent_path: str) -> list[Any]:
        del project_id, agent_path
        return []


@dataclass
class _Bench:
    driver: Any
    transcript: Any
    hub: Any
    models: _Models


async def _measured() -> tuple[list[float], float, list[float], float]:
    root = Path(tempfile.mkdtemp(prefix="kaged-bench-loop-"))
    try:
        async with _opened(root) as bench:
            steps = [await _steps(bench) for _ in range(ROUNDS)]
            latencies, wall_s = await _crowd(bench)
        commits = _commits(root / "peer.db")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return steps, commits, latencies, wall_s


async def _steps(bench: _Bench) -> float:
    bench.models.model = BenchModel(STEPS)
    session = await bench.transcript.create("prj", cwd="/", model=None)
    started = time.perf_counter()
    end = await bench.driver.wait(await bench.driver.send(session.id, "Go"))
    took = time.perf_counter() - started
    assert end.status == "completed", end
    return took / (STEPS + 1) * 1000


async def _crowd(bench: _Bench) -> tuple[list[float], float]:
    """Let many sessions talk at once; measure how long each word takes to a reader of the ring."""
    bench.models.model = BenchModel(SESSION_STEPS, WORDS, PACE_S)
    sessions = [
        (await bench.transcript.create("prj", cwd="/", model=None)).id for _ in range(SESSIONS)
    ]
    latencies: list[float] = []
    tasks = Tasks("bench", lambda _name, error: print(error))
    reading = tasks.start(_read(bench.hub, latencies), "reader")
    started = time.perf_counter()
    runs = await asyncio.gather(*(bench.driver.send(one, "Go") for one in sessions))
    ends = await asyncio.gather(*(bench.driver.wait(one) for one in runs))
    wall_s = time.perf_counter() - started
    assert all(end.status == "completed" for end in ends)
    await asyncio.sleep(0.1)
    reading.cancel()
    await tasks.close()
    return latencies, wall_s


async def _read(hub: Any, latencies: list[float]) -> None:
    seen = hub.latest
    with hub.subscribe() as waker:
        while True:
            await waker.wait()
            waker.clear()
            while batch := hub.read(seen):
                now = time.perf_counter()
                for event in batch:
                    seen = event.seq
                    body = json.loads(event.text)
                    if body["name"] == "text.delta":
                        latencies.append((now - float(body["data"]["text"])) * 1000)


def _commits(path: Path) -> float:
    """Measure two bare commits, each with one row, as the store writes them."""
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("CREATE TABLE t (a TEXT)")
    times: list[float] = []
    for _ in range(200):
        started = time.perf_counter()
        for _ in range(2):
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t VALUES (?)", ("x" * 300,))
            conn.execute("COMMIT")
        times.append((time.perf_counter() - started) * 1000)
    conn.close()
    return statistics.median(times)


async def _always_ready(_project_id: str | None) -> None:
    """Wait for nothing: there are no guards."""


async def _nobody(_kept: KeptActor) -> None:
    """Let nobody in again: no run goes on here."""


@asynccontextmanager
async def _opened(root: Path) -> AsyncGenerator[_Bench]:
    """Put a daemon's sessions together on a folder."""
    from kaged.app.sessions import build_sessions
    from kaged.audit import AuditLog, HeadFile, open_key
    from kaged.base import Ids, SystemClock
    from kaged.config.agents import resolve_agents
    from kaged.config.daemonconfig import DaemonConfig
    from kaged.config.localconfig import LocalConfig
    from kaged.config.project import load_project
    from kaged.config.reading import Loaded
    from kaged.events import EventHub
    from kaged.sessions.agent_tools import AgentToolService, ToolLinks
    from kaged.sessions.driver_building import build_driver
    from kaged.sessions.hooks import SessionHooks
    from kaged.store import Store, sqlite_url
    from kaged.toolbox.project import TodoService
    from kaged.toolbox.project.person_uploads import PersonUploads
    from kaged.tools import Tool, ToolDefinition, ToolInvocation
    from kaged.tools.kept_results import KeptResults
    from kaged.tools.outcome_stream import OutcomeStream

    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
    )
    key = open_key(root / "audit.key", chain_exists=False)
    audit = await AuditLog.open(
        store.audit, clock=clock, ids=ids, key=key, head_file=HeadFile(root / "audit.head")
    )
    hub = EventHub(clock, ids)
    closing = AsyncExitStack()
    sessions = build_sessions(
        store,
        audit,
        hub,
        clock=clock,
        ids=ids,
        ready=_always_ready,
        closing=closing,
        uploads=PersonUploads(root / "uploads"),
        kept=KeptResults(root / "results", lambda: ids.tagged("res")),
    )
    agent_tools = AgentToolService(
        audit,
        clock,
        ids,
        ready=_always_ready,
        plugins_of=lambda _project, _agent: (),
        pipeline=lambda: None,
        outcomes=(OutcomeStream(hub), sessions.calls),
        starts=(sessions.calls,),
    )

    async def nothing(call: ToolInvocation) -> Any:
        del call
        return {}

    definition = ToolDefinition(
        name="file.nothing",
        namespace="file",
        description="Does nothing.",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
        returns={},
        requires=(),
    )
    agent_tools.register([Tool(definition, nothing)])
    folder = root / "project"
    (folder / ".kaged").mkdir(parents=True)
    (folder / ".kaged" / "project.yaml").write_text(PROJECT_FILE, encoding="utf-8")
    agent_tools.project_loaded(
        "prj", resolve_agents(load_project(folder), Loaded(DaemonConfig()), Loaded(LocalConfig()))
    )
    models = _Models(BenchModel(0))
    hooks: Any = _NoHooks()

    async def snapshot(project_id: str) -> Any:
        return agent_tools.snapshot(project_id)

    async def no_routing(_run: Any, _snapshot: Any) -> str:
        return ""

    driving = build_driver(
        store,
        sessions.transcript,
        sessions.service,
        sessions.navigation,
        sessions.lifecycle,
        dispatcher=agent_tools.dispatcher,
        workspace_of=agent_tools.workspace_of,
        take_snapshot=snapshot,
        hooks=SessionHooks(hooks, hooks.participants),
        models=models,
        routing=no_routing,
        todos=TodoService(store, ids),
        audit=audit,
        pipeline=lambda: None,
        labels=sessions.labels,
        run_ended=(),
        ready=_always_ready,
        renew_actor=_nobody,
        idle_s=lambda: 3600.0,
        clock=clock,
        ids=ids,
    )
    agent_tools.connect(ToolLinks(fixed=driving.driver.fixed_tools))
    try:
        yield _Bench(driving.driver, sessions.transcript, hub, models)
    finally:
        await driving.driver.close()
        await closing.aclose()
        await audit.close()
        await store.close()


if __name__ == "__main__":
    show(run())
