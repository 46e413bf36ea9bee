"""The daemon dies while fifty callers work: what was acknowledged is there, whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import text

from fakes.store_home import StoreHome
from fakes.work_lab import PROJECT, WorkLab
from kaged.base import Ids, ManualClock
from kaged.kernel.identity import Actor, VouchedBy
from kaged.store.interaction_rows import InteractionStatus

OPERATOR = Actor.operator("op", VouchedBy.UNIX)

HERE = Path(__file__).parent
ROUNDS = 2
ACKNOWLEDGED = 400


def run_and_kill(root: Path, round_: int) -> list[dict[str, Any]]:
    """Let a child work as fast as it can, kill it; return what it had acknowledged."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "children" / "work.py"), str(root), str(round_)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert child.stdout is not None
    lines: list[bytes] = []
    with child:
        try:
            for line in child.stdout:
                lines.append(line)
                if len(lines) == ACKNOWLEDGED + round_ * 37:
                    break
        finally:
            child.kill()
        lines.extend(child.stdout.read().splitlines(keepends=True))
    assert child.returncode == -signal.SIGKILL, child.returncode
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


async def test_what_fifty_callers_were_told_is_done_survives_kill_nine(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    facts: list[dict[str, Any]] = []
    home = StoreHome(tmp_path, clock, ids)
    for round_ in range(ROUNDS):
        facts += run_and_kill(tmp_path, round_)
        store = await home.store()
        await store.check()
        lab = WorkLab(tmp_path, store, clock, ids)
        await _require_kept(lab, [fact for fact in facts if "number" in fact])
        await _require_whole(lab)
        for fact in facts:
            if "question" in fact:
                record = await lab.work.interactions.get(PROJECT, fact["question"], OPERATOR)
                assert record.status is InteractionStatus.PENDING
        await lab.tasks.close()
        await home.close()


async def _require_kept(lab: WorkLab, facts: list[dict[str, Any]]) -> None:
    """Every fact that was told holds."""
    assert facts
    found: dict[int, Any] = {}
    for fact in facts:
        number = fact["number"]
        if number not in found:
            found[number] = await lab.call("kaged.issue", action="get", number=number)
        issue = found[number]
        if "title" in fact:
            assert issue["title"] == fact["title"]
        if "comment" in fact:
            assert fact["comment"] in [one["body"] for one in issue["updates"]]
        if "status" in fact:
            assert issue["status"] == fact["status"]
            assert issue["resolved_at"] is not None
        if "todos" in fact:
            shown = await lab.work.todos.view(issue["id"])
            assert [one["status"] for one in shown["todos"]] == ["in_progress", "pending"]  # type: ignore[index,union-attr]  # JSON


async def _require_whole(lab: WorkLab) -> None:
    """Nothing is half done: numbers have no holes, and the search index fits its table."""
    numbers = await lab.store.read(
        lambda conn: [row[0] for row in conn.execute(text("SELECT number FROM issues"))]
    )
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    torn = await lab.store.read(
        lambda conn: conn.execute(
            text(
                "SELECT count(*) FROM issues WHERE status = 'resolved' AND (SELECT count(*) FROM "
                "issue_updates WHERE issue_id = issues.id AND kind = 'status_change') <> 1"
            )
        ).scalar()
    )
    assert torn == 0
    await lab.store.write(
        lambda conn: conn.execute(
            text("INSERT INTO issues_text (issues_text) VALUES ('integrity-check')")
        )
    )
    opened = await lab.call("kaged.issue", action="list", search="needle", limit=1)
    done = await lab.call("kaged.issue", action="list", search="needle", limit=1, status="resolved")
    assert opened["total"] + done["total"] == len(numbers)
