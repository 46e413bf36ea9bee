"""Looks into a running daemon's database again and again, as `kaged audit verify` does.

Prints `ready`, then at the end how often it looked and how many findings it had.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kaged.audit import HeadFile, load_key
from kaged.base import Ids, SystemClock
from kaged.store import Store, sqlite_url


async def main(root: Path) -> None:
    clock = SystemClock()
    key = load_key(root / "audit.key")
    told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))  # noqa: TID251 - awaited below
    print("ready", flush=True)  # noqa: T201 - how it talks to the test
    rounds = findings = 0
    while not told.done() or rounds == 0:
        store = await Store.open(
            sqlite_url(root / "kaged.db"),
            clock=clock,
            ids=Ids(clock),
            backup_dir=root / "backups",
            read_only=True,
        )
        report = await store.audit.verify(key, HeadFile(root / "audit.head"))
        for finding in report.findings:
            print(finding, flush=True)  # noqa: T201 - how it talks to the test
        findings += report.total
        rounds += 1
        await store.close()
    await told
    print(rounds, findings, flush=True)  # noqa: T201 - how it talks to the test


asyncio.run(main(Path(sys.argv[1])))
