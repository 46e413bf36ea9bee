"""Records events as fast as it can and says on its standard output which are durable.

Never ends by itself: the test kills it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from fakes.forked_children import serve_forks
from kaged.audit import AuditEvent, AuditLog, HeadFile, open_key
from kaged.base import Ids, SystemClock
from kaged.store import Store, sqlite_url


async def main(folder: str, round_: str) -> None:
    root = Path(folder)
    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
    )
    log = await AuditLog.open(
        store.audit,
        clock=clock,
        ids=ids,
        key=open_key(root / "audit.key", chain_exists=False),
        head_file=HeadFile(root / "audit.head"),
    )

    async def durable(worker: int) -> None:
        number = 0
        while True:
            name = f"{round_}/{worker}/{number}"
            await log.record(AuditEvent("plugin.enabled", {"name": name}))
            os.write(1, f"{name}\n".encode())
            number += 1

    async def noise() -> None:
        data = {"path": "noise", "replacements": 1, "caller": "primary"}
        while True:
            for _ in range(50):
                await log.record(AuditEvent("file.edited", data))
            await log.flush()

    async with asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(durable(worker))
        group.create_task(noise())


if __name__ == "__main__":
    serve_forks(main)
