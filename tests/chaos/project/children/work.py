"""Fifty callers work on one project through the tools and say what was acknowledged.

Never ends by itself: the test kills it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from fakes.store_home import StoreHome
from fakes.work_lab import PROJECT, WorkLab
from kaged.base import Ids, SystemClock

CALLERS = 50


def acknowledge(**facts: object) -> None:
    os.write(1, f"{json.dumps(facts)}\n".encode())


async def main(root: Path, round_: str) -> None:
    clock = SystemClock()
    ids = Ids(clock)
    store = await StoreHome(root, clock, ids).store()
    lab = WorkLab(root, store, clock, ids)
    lab.loop_runs = True

    async def caller(worker: int) -> None:
        session = f"ses_{round_}_{worker}"
        turn = 0
        while True:
            title = f"r{round_} w{worker} t{turn}"
            made = await lab.call("kaged.issue", action="create", title=title, body="needle")
            number = made["number"]
            acknowledge(number=number, title=title)
            await lab.call("kaged.issue", action="comment", number=number, body=title)
            acknowledge(number=number, comment=title)
            await lab.call(
                "kaged.issue", action="transition", number=number, to="resolved", comment="done"
            )
            acknowledge(number=number, status="resolved")
            await store.sessions.ensure(session, PROJECT)
            await store.sessions.bind(PROJECT, session, number)
            params = {"action": "set", "items": [f"{title} a", f"{title} b"]}
            await lab.call_with("kaged.todo", params, session_id=session)
            await lab.call_with(
                "kaged.todo", {"action": "start", "content": f"{title} a"}, session_id=session
            )
            acknowledge(number=number, todos=2)
            turn += 1

    async def asker() -> None:
        turn = 0
        while True:
            asked = await lab.call_with(
                "kaged.checkpoint", {"message": "m"}, session_id=f"ask_{round_}_{turn}"
            )
            acknowledge(question=asked["interaction_requested"]["request_id"])
            turn += 1

    async with asyncio.TaskGroup() as group:
        for worker in range(CALLERS):
            group.create_task(caller(worker))
        group.create_task(asker())


# Ids of requests are counted per desk; each round has some of its own.
asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
