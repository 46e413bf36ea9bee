"""Dies while it makes its first database."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from sqlalchemy import Connection, text

from kaged.base import Ids, SystemClock
from kaged.store import MIGRATIONS, Migration, Store, sqlite_url
from kaged.store.backends import SqliteBackend


def upgrade(conn: Connection, _: SqliteBackend) -> None:
    conn.execute(text("CREATE TABLE half (x TEXT)"))
    os.kill(os.getpid(), signal.SIGKILL)


async def main(root: Path) -> None:
    clock = SystemClock()
    await Store.open(
        sqlite_url(root / "kaged.db"),
        clock=clock,
        ids=Ids(clock),
        backup_dir=root / "backups",
        migrations=[*MIGRATIONS, Migration(MIGRATIONS[-1].version + 1, "die", upgrade)],
    )


asyncio.run(main(Path(sys.argv[1])))
