"""The sessions on a real SQLite file: append, replay, fork, search, and the cost of an idle one.

Run it alone with `python benchmarks/bench_sessions.py`; `run()` returns the suite's rows. Every
peer is measured in the same run on the same disk.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from kaged.base import Ids, SystemClock
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle
from kaged.sessions.session_service import SessionService
from kaged.sessions.transcript import Transcript
from kaged.store import Store, sqlite_url
from kaged.store.agent_run_rows import AgentRunStatus, RunResult
from scoreboard import Row, at_most, row, show

PROJECT = "prj_bench"
ENTRIES = 10_000
REPLAY_TARGET_MS = 150.0
APPEND_RATIO = 5.0
FORK_RATIO = 2.0
IDLE_TARGET_KIB = 100.0
SEARCH_TARGET_MS = 50.0
SAMPLES = 100
ROUNDS = 5
IDLE_SESSIONS = 300

_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "reads")


def run() -> list[Row]:
    return asyncio.run(_run())


async def _run() -> list[Row]:
    root = Path(tempfile.mkdtemp(prefix="kaged-bench-sessions-"))
    clock = SystemClock()
    ids = Ids(clock)
    try:
        store = await Store.open(
            sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
        )
        lifecycle = Lifecycle()
        transcript = Transcript(store, lifecycle, clock=clock, ids=ids)
        service = SessionService(store, transcript, lifecycle)
        large = await _filled(transcript, ENTRIES)
        small = await _filled(transcript, 10)
        append, commit = await _append(transcript, small, root / "peer.db")
        replay, window = await _replay(transcript, large)
        fork_large, fork_small = await _forks(transcript, large, small)
        search = await _search(service)
        idle_kib = await _idle(transcript, service)
        await store.close()
        floor = _bare_replay(root / "kaged.db", large)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    append_ms = statistics.median(append) * 1000
    return [
        row(
            "session append, durable, median",
            append_ms,
            "ms",
            against="one bare SQLite commit, same disk",
            peer=commit * 1000,
            target=at_most(APPEND_RATIO, append_ms / (commit * 1000), "x a bare commit"),
            samples=append,
        ),
        row(
            f"session replay, {ENTRIES} entries",
            min(replay) * 1000,
            "ms",
            against="the same rows with sqlite3 and json",
            peer=floor * 1000,
            target=at_most(REPLAY_TARGET_MS, min(replay) * 1000, "ms"),
            samples=replay,
        ),
        row(
            f"session window, {ENTRIES} entries",
            min(window) * 1000,
            "ms",
            against="the same rows with sqlite3 and json",
            peer=floor * 1000,
            target=at_most(REPLAY_TARGET_MS, min(window) * 1000, "ms"),
            samples=window,
        ),
        row(
            f"session fork at the end of {ENTRIES} entries, median",
            statistics.median(fork_large) * 1000,
            "ms",
            against="the same of a session of 10 entries",
            peer=statistics.median(fork_small) * 1000,
            target=at_most(
                FORK_RATIO, statistics.median(fork_large) / statistics.median(fork_small), "x"
            ),
            samples=fork_large,
        ),
        row(
            f"session search, a rare word in {ENTRIES} entries",
            statistics.median(search) * 1000,
            "ms",
            target=at_most(SEARCH_TARGET_MS, statistics.median(search) * 1000, "ms"),
            samples=search,
        ),
        row(
            "memory of one idle session that has run",
            idle_kib,
            "KiB",
            target=at_most(IDLE_TARGET_KIB, idle_kib, "KiB"),
        ),
    ]


async def _filled(transcript: Transcript, count: int) -> str:
    made = await transcript.create(PROJECT, cwd="/src", model="scripted")
    for start in range(0, count, 500):
        drafts = [_message(number) for number in range(start, min(start + 500, count))]
        await transcript.append(made.id, drafts)
    return made.id


def _message(number: int) -> EntryDraft:
    """Make a user's words, an assistant's turn with a tool call, or the result of one."""
    words = " ".join(_WORDS[(number + n) % len(_WORDS)] for n in range(40))
    if number % 2500 == 1000:
        words += " xylophone"
    role = (EntryRole.USER, EntryRole.ASSISTANT, EntryRole.TOOL_RESULT)[number % 3]
    blocks: list[Any] = [{"type": "text", "text": f"{number}: {words}"}]
    if role is EntryRole.ASSISTANT:
        call = {"id": f"call_{number}", "name": "file.read", "input": {"path": "src/a.py"}}
        blocks.append({"type": "tool_call", **call})
    if role is EntryRole.TOOL_RESULT:
        blocks = [{"type": "tool_result_block", "call_id": f"call_{number - 1}", "output": words}]
    return EntryDraft(EntryKind.MESSAGE, {"content": blocks}, role=role, run_id="run_1")


async def _append(transcript: Transcript, session: str, peer: Path) -> tuple[list[float], float]:
    ours: list[float] = []
    bare: list[float] = []
    conn = sqlite3.connect(peer, isolation_level=None)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("CREATE TABLE peer (id INTEGER PRIMARY KEY, data TEXT)")
    for number in range(SAMPLES):
        start = time.perf_counter()
        await transcript.append(session, [_message(number)])
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        conn.execute("INSERT INTO peer (data) VALUES (?)", ("x" * 400,))
        bare.append(time.perf_counter() - start)
    conn.close()
    return ours, statistics.median(bare)


async def _replay(transcript: Transcript, session: str) -> tuple[list[float], list[float]]:
    whole: list[float] = []
    window: list[float] = []
    # As the daemon does at its start: what was loaded is not looked through again and again.
    gc.collect()
    gc.freeze()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        count = len(await transcript.entries(session))
        whole.append(time.perf_counter() - start)
        assert count == ENTRIES + 1
        start = time.perf_counter()
        count = len(await transcript.window(session))
        window.append(time.perf_counter() - start)
        assert count == ENTRIES
    gc.unfreeze()
    # The best of the rounds counts: whatever else the machine does only ever adds.
    return whole, window


def _bare_replay(path: Path, session: str) -> float:
    conn = sqlite3.connect(path)
    taken: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        rows = conn.execute(
            "SELECT id, kind, role, agent, run_id, ts_ms, content FROM entries "
            "WHERE session_id = ? ORDER BY position",
            (session,),
        ).fetchall()
        kept = [(*row[:-1], json.loads(row[-1])) for row in rows]
        taken.append(time.perf_counter() - start)
        assert len(kept) == ENTRIES + 1
    conn.close()
    return min(taken)


async def _forks(transcript: Transcript, large: str, small: str) -> tuple[list[float], list[float]]:
    taken: dict[str, list[float]] = {large: [], small: []}
    for _ in range(SAMPLES):
        for session, times in taken.items():
            start = time.perf_counter()
            await transcript.fork(session)
            times.append(time.perf_counter() - start)
    return taken[large], taken[small]


async def _search(service: SessionService) -> list[float]:
    taken: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        hits, total = await service.search(PROJECT, "xylophone")
        taken.append(time.perf_counter() - start)
        assert total == len(hits) == ENTRIES // 2500
    return taken


async def _idle(transcript: Transcript, service: SessionService) -> float:
    """Let sessions run once and see what stays in memory for each."""
    await _one_run(transcript, service)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(IDLE_SESSIONS):
        await _one_run(transcript, service)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return max(0.0, (after - before) / IDLE_SESSIONS / 1024)


async def _one_run(transcript: Transcript, service: SessionService) -> None:
    made = await transcript.create(PROJECT, cwd="/src", model="scripted")
    run_ = await service.begin_run(made.id)
    await transcript.append(made.id, [_message(number) for number in range(6)])
    await transcript.window(made.id)
    await service.finish_run(run_.id, RunResult(AgentRunStatus.COMPLETED, 3))


if __name__ == "__main__":
    show(run())
