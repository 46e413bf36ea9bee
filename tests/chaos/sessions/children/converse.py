"""Appends to sessions and begins runs as fast as it can, and says what is acknowledged."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kaged.base import Ids, SystemClock
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle
from kaged.sessions.session_service import SessionService
from kaged.sessions.transcript import Transcript
from kaged.store import Store, sqlite_url
from kaged.store.agent_run_rows import AgentRunStatus, RunResult

WORKERS = 4


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


async def converse(transcript: Transcript, service: SessionService) -> None:
    session = (await transcript.create("prj_1", cwd="/", model=None)).id
    say("session", session)
    while True:
        run = await service.begin_run(session)
        say("begun", session, run.id)
        for number in range(3):
            draft = EntryDraft(
                EntryKind.MESSAGE,
                {"content": [{"type": "text", "text": f"{number}"}]},
                role=EntryRole.USER,
                run_id=run.id,
            )
            for entry in await transcript.append(session, [draft, draft]):
                say("entry", session, entry.id)
        await service.finish_run(run.id, RunResult(AgentRunStatus.COMPLETED, 3))
        say("ended", session, run.id)
        session = (await transcript.fork(session)).id
        say("session", session)


async def main(root: Path) -> None:
    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
    )
    lifecycle = Lifecycle()
    transcript = Transcript(store, lifecycle, clock=clock, ids=ids)
    service = SessionService(store, transcript, lifecycle)
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(converse(transcript, service))


asyncio.run(main(Path(sys.argv[1])))
