"""Dies in the middle of a migration."""

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
    conn.execute(text("ALTER TABLE projects ADD COLUMN half TEXT"))
    conn.execute(text("DROP TABLE audit_anchor"))
    # Enough to push pages of the open transaction out of the cache and into the log file.
    conn.execute(text("CREATE TABLE bulk (x BLOB)"))
    for _number in range(int(sys.argv[2])):
        conn.execute(text("INSERT INTO bulk VALUES (randomblob(1000000))"))
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
