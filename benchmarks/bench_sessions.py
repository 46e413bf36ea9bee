"""The session book on a real SQLite file: append, replay, fork, search, and what an idle one costs.

Run it alone with `python benchmarks/bench_sessions.py`; `run()` gives the rows for the suite. Every
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
from kaged.sessions.book import SessionBook
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle
from kaged.sessions.transcript import Transcript
from kaged.store import Store, sqlite_url
from kaged.store.agent_run_rows import AgentRunStatus, RunResult

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


def run() -> list[dict[str, Any]]:
    return asyncio.run(_run())


async def _run() -> list[dict[str, Any]]:
    root = Path(tempfile.mkdtemp(prefix="kaged-bench-sessions-"))
    clock = SystemClock()
    ids = Ids(clock)
    try:
        store = await Store.open(
            sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
        )
        lifecycle = Lifecycle()
        transcript = Transcript(store, lifecycle, clock=clock, ids=ids)
        book = SessionBook(store, transcript, lifecycle)
        large = await _filled(transcript, ENTRIES)
        small = await _filled(transcript, 10)
        append, commit = await _append(transcript, small, root / "peer.db")
        replay, window = await _replay(transcript, large)
        fork_large, fork_small = await _forks(transcript, large, small)
        search = await _search(book)
        idle_kib = await _idle(transcript, book)
        await store.close()
        floor = _bare_replay(root / "kaged.db", large)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return [
        _row(
            "session append, durable, median",
            append * 1000,
            "ms",
            "one bare SQLite commit, same disk",
            commit * 1000,
            ok=append <= commit * APPEND_RATIO,
            target=f"<= {APPEND_RATIO:g}x a bare commit",
        ),
        _row(
            f"session replay, {ENTRIES} entries",
            replay * 1000,
            "ms",
            "the same rows with sqlite3 and json",
            floor * 1000,
            ok=replay * 1000 <= REPLAY_TARGET_MS,
            target=f"<= {REPLAY_TARGET_MS:g} ms",
        ),
        _row(
            f"session window, {ENTRIES} entries",
            window * 1000,
            "ms",
            "the same rows with sqlite3 and json",
            floor * 1000,
            ok=window * 1000 <= REPLAY_TARGET_MS,
            target=f"<= {REPLAY_TARGET_MS:g} ms",
        ),
        _row(
            f"session fork at the end of {ENTRIES} entries, median",
            fork_large * 1000,
            "ms",
            "the same of a session of 10 entries",
            fork_small * 1000,
            ok=fork_large <= fork_small * FORK_RATIO,
            target=f"<= {FORK_RATIO:g}x: it does not grow with the session",
        ),
        _row(
            f"session search, a rare word in {ENTRIES} entries",
            search * 1000,
            "ms",
            "the target",
            SEARCH_TARGET_MS,
            ok=search * 1000 <= SEARCH_TARGET_MS,
            target=f"<= {SEARCH_TARGET_MS:g} ms",
        ),
        _row(
            "memory of one idle session that has run",
            idle_kib,
            "KiB",
            "the target",
            IDLE_TARGET_KIB,
            ok=idle_kib <= IDLE_TARGET_KIB,
            target=f"<= {IDLE_TARGET_KIB:g} KiB",
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


async def _append(transcript: Transcript, session: str, peer: Path) -> tuple[float, float]:
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
    return statistics.median(ours), statistics.median(bare)


async def _replay(transcript: Transcript, session: str) -> tuple[float, float]:
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
    # The best of the rounds: whatever else the machine does only ever adds.
    return min(whole), min(window)


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


async def _forks(transcript: Transcript, large: str, small: str) -> tuple[float, float]:
    taken: dict[str, list[float]] = {large: [], small: []}
    for _ in range(SAMPLES):
        for session, times in taken.items():
            start = time.perf_counter()
            await transcript.fork(session)
            times.append(time.perf_counter() - start)
    return statistics.median(taken[large]), statistics.median(taken[small])


async def _search(book: SessionBook) -> float:
    taken: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        hits, total = await book.search(PROJECT, "xylophone")
        taken.append(time.perf_counter() - start)
        assert total == len(hits) == ENTRIES // 2500
    return statistics.median(taken)


async def _idle(transcript: Transcript, book: SessionBook) -> float:
    """Let sessions run once and see what stays in memory for each."""
    await _one_run(transcript, book)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(IDLE_SESSIONS):
        await _one_run(transcript, book)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return max(0.0, (after - before) / IDLE_SESSIONS / 1024)


async def _one_run(transcript: Transcript, book: SessionBook) -> None:
    made = await transcript.create(PROJECT, cwd="/src", model="scripted")
    run_ = await book.begin_run(made.id)
    await transcript.append(made.id, [_message(number) for number in range(6)])
    await transcript.window(made.id)
    await book.finish_run(run_.id, RunResult(AgentRunStatus.COMPLETED, 3))


def _row(
    work: str, ours: float, unit: str, against: str, peer: float, *, ok: bool, target: str
) -> dict[str, Any]:
    return {
        "work": work,
        "ours": round(ours, 3),
        "unit": unit,
        "against": against,
        "peer": round(peer, 3),
        "ratio": round(ours / peer, 3),
        "target": target,
        "verdict": "met" if ok else "missed",
    }


if __name__ == "__main__":
    for row in run():
        print(row)
