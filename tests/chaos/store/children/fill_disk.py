"""Fills its disk, sees what still works, makes room, and sees that all of it works again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from kaged.audit import AuditEvent, AuditLimits, AuditLog, AuditUnavailable, HeadFile, open_key
from kaged.base import Ids, SystemClock
from kaged.store import Store, StoreUnavailable, sqlite_url


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


async def main(root: Path) -> None:
    clock = SystemClock()
    ids = Ids(clock)
    seen: dict[str, Any] = {"refused": []}
    key = open_key(root / "audit.key", chain_exists=False)
    head_file = HeadFile(root / "audit.head")
    store = await Store.open(
        sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
    )
    limits = AuditLimits(retry_first_s=60, retry_max_s=60)
    log = await AuditLog.open(
        store.audit, clock=clock, ids=ids, key=key, head_file=head_file, limits=limits
    )
    await log.record(AuditEvent("plugin.enabled", {"name": "before"}))
    await store.projects.upsert("/srv/before", "b", "B")

    fill(root / "filler")
    big = {"path": "x" * 900, "replacements": 1, "caller": "primary"}
    try:
        while True:  # the log file may still have some room inside
            await log.record(AuditEvent("file.edited", big), durable=True)
    except AuditUnavailable as error:
        seen["refused"].append(error.code)
        seen["message"] = error.message
    try:
        while True:
            await store.projects.upsert("/srv/" + "y" * 3000 + ids.ulid(), "s", "n")
    except StoreUnavailable as error:
        seen["refused"].append(error.code)
        seen["store_fix"] = error.fix
    seen["decision"] = log.decide_mutation().allowed
    seen["health_while_full"] = log.health.ok
    seen["reads_went_on"] = 0
    for number in range(20):
        assert await store.projects.list()
        await log.record(
            AuditEvent("file.edited", {"path": f"q{number}", "replacements": 1, "caller": "p"})
        )
        seen["reads_went_on"] += 1

    (root / "filler").unlink()
    seen["health_after"] = (await log.retry()).ok
    await log.record(AuditEvent("plugin.enabled", {"name": "written again"}))
    await store.projects.upsert("/srv/after", "a", "A")
    report = await store.audit.verify(key, head_file)
    seen["findings"] = [finding.detail for finding in report.findings]
    rows = [row async for row in store.audit.iter_rows()]
    seen["names"] = [row.name for row in rows]
    seen["kept_after"] = rows[-1].data["name"]
    seen["quiet_events"] = sum(str(row.data.get("path", "")).startswith("q") for row in rows)
    await log.close()
    await store.check()
    await store.close()
    print(json.dumps(seen))  # noqa: T201 - how it talks to the test


asyncio.run(main(Path(sys.argv[1])))
