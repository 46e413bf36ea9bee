"""The daemon's process dies in the middle of conversations: nothing acknowledged is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fakes.session_lab import SessionLab, session_lab
from kaged.base import Ids, ManualClock
from kaged.store.agent_run_rows import AgentRunStatus

CHILD = Path(__file__).parent / "children" / "converse.py"
ACKNOWLEDGED = 150


def run_and_kill(root: Path, lines_wanted: int) -> list[list[str]]:
    """Let a child work, kill it after so many acknowledgements; return all of them."""
    child = subprocess.Popen([sys.executable, str(CHILD), str(root)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines: list[bytes] = []
    with child:
        try:
            for line in child.stdout:
                lines.append(line)
                if len(lines) == lines_wanted:
                    break
        finally:
            child.kill()
        lines.extend(child.stdout.read().splitlines(keepends=True))
    assert child.returncode == -signal.SIGKILL
    return [line.decode().split() for line in lines if line.endswith(b"\n")]


async def check(lab: SessionLab, said: list[list[str]]) -> None:
    begun = {words[2]: words[1] for words in said if words[0] == "begun"}
    ended = {words[2] for words in said if words[0] == "ended"}
    for words in said:
        if words[0] == "entry":
            assert (await lab.transcript.find_entry(words[1], words[2])).id == words[2]
    for session in {words[1] for words in said if words[0] == "session"}:
        entries = await lab.transcript.entries(session)
        ids = [entry.id for entry in entries[1:]]
        assert ids == sorted(set(ids))
        # Two entries of one append are there together or not at all.
        assert len(ids) % 2 == 0
    for run_id, session in begun.items():
        run = await lab.store.agent_runs.get(run_id)
        assert run.status in {AgentRunStatus.COMPLETED, AgentRunStatus.INTERRUPTED}
        if run_id in ended:
            assert run.status is AgentRunStatus.COMPLETED
        assert (await lab.store.sessions.of_id(session)).status == "idle"
        if run.status is AgentRunStatus.INTERRUPTED:
            await lab.service.begin_run(session)


async def test_acknowledged_entries_survive_kill_nine_and_active_runs_are_interrupted(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    said: list[list[str]] = []
    for round_ in range(2):
        said += run_and_kill(tmp_path, ACKNOWLEDGED + 37 * round_)
        async with session_lab(tmp_path, clock, ids) as lab:
            interrupted = await lab.service.recover()
            known = {words[2] for words in said if words[0] == "ended"}
            assert not {run.id for run in interrupted} & known
            await check(lab, said)
