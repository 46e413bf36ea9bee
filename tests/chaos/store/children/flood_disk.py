"""Records from many tasks until the disk is full, again and again, with room made in between."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from kaged.audit import AuditEvent, AuditLimits, AuditLog, AuditUnavailable, HeadFile, open_key
from kaged.base import Ids, SystemClock
from kaged.store import Store, sqlite_url

ROUNDS = 3
WORKERS = 10


async def main(root: Path) -> None:
    clock = SystemClock()
    ids = Ids(clock)
    key = open_key(root / "audit.key", chain_exists=False)
    head_file = HeadFile(root / "audit.head")
    store = await Store.open(
        sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
    )
    limits = AuditLimits(retry_first_s=60, retry_max_s=60, batch_events=20)
    log = await AuditLog.open(
        store.audit, clock=clock, ids=ids, key=key, head_file=head_file, limits=limits
    )
    acknowledged: list[str] = []
    refused = 0

    async def worker(name: str) -> None:
        nonlocal refused
        number = 0
        while True:
            path = f"{name}/{number}/" + "x" * 300
            event = AuditEvent("file.edited", {"path": path, "replacements": 1, "caller": "p"})
            try:
                await log.record(event, durable=True)
            except AuditUnavailable:
                refused += 1
                return
            acknowledged.append(path)
            number += 1

    fillers = [root / f"filler{number}" for number in range(ROUNDS)]
    for filler in fillers:
        filler.write_bytes(b"x" * 600_000)
    for round_, filler in enumerate(fillers):
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(worker(f"{round_}/{number}"))
        filler.unlink()
        health = await log.retry()
        assert health.ok, health

    report = await store.audit.verify(key, head_file)
    kept = {str(row.data.get("path")) async for row in store.audit.iter_rows()}
    seen: dict[str, Any] = {
        "acknowledged": len(acknowledged),
        "refused": refused,
        "missing": [path for path in acknowledged if path not in kept],
        "findings": [finding.detail for finding in report.findings],
    }
    await log.close()
    await store.check()
    await store.close()
    print(json.dumps(seen))  # noqa: T201 - how it talks to the test


asyncio.run(main(Path(sys.argv[1])))
