"""Tries to open databases on a disk that may only be read, then may be written again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kaged.base import Ids, SystemClock
from kaged.store import Store, StoreUnavailable, sqlite_url


async def opened(root: Path, name: str, *, read_only: bool = False) -> Store:
    clock = SystemClock()
    return await Store.open(
        sqlite_url(root / name),
        clock=clock,
        ids=Ids(clock),
        backup_dir=root / "backups",
        read_only=read_only,
    )


async def main(root: Path) -> None:
    seen: dict[str, Any] = {}
    store = await opened(root, "old.db")
    await store.projects.upsert("/srv/a", "a", "A")
    await store.close()
    for suffix in ("", "-wal"):
        half = root / f"half.db{suffix}"
        half.write_bytes((root / "old.db").read_bytes())

    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
    for what, name in (("new", "new.db"), ("existing", "old.db")):
        try:
            await opened(root, name)
        except StoreUnavailable as error:
            seen[what] = error.code
            seen["fix"] = error.fix
    reading = await opened(root, "old.db", read_only=True)
    seen["rows_read_only"] = len(await reading.projects.list())
    await reading.close()
    try:
        await opened(root, "half.db", read_only=True)
    except StoreUnavailable as error:
        seen["half"] = error.fix

    subprocess.run(["mount", "-o", "remount,bind,rw", str(root)], check=True)
    store = await opened(root, "old.db")
    seen["rows_after"] = len(await store.projects.list())
    await store.close()
    print(json.dumps(seen))  # noqa: T201 - how it talks to the test


asyncio.run(main(Path(sys.argv[1])))
