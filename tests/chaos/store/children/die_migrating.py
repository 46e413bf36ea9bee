"""Dies in the middle of a migration."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from sqlalchemy import Connection, text

from fakes.forked_children import serve_forks
from kaged.base import Ids, SystemClock
from kaged.store import MIGRATIONS, Migration, Store, sqlite_url
from kaged.store.backends import SqliteBackend

BIG_ROWS = [0]


def upgrade(conn: Connection, _: SqliteBackend) -> None:
    conn.execute(text("ALTER TABLE projects ADD COLUMN half TEXT"))
    conn.execute(text("DROP TABLE audit_anchor"))
    # Enough to push pages of the open transaction out of the cache and into the log file.
    conn.execute(text("CREATE TABLE bulk (x BLOB)"))
    for _number in range(BIG_ROWS[0]):
        conn.execute(text("INSERT INTO bulk VALUES (randomblob(1000000))"))
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: str, rows: str) -> None:
    root = Path(folder)
    BIG_ROWS[0] = int(rows)
    clock = SystemClock()
    await Store.open(
        sqlite_url(root / "kaged.db"),
        clock=clock,
        ids=Ids(clock),
        backup_dir=root / "backups",
        migrations=[*MIGRATIONS, Migration(MIGRATIONS[-1].version + 1, "die", upgrade)],
    )


if __name__ == "__main__":
    serve_forks(main)
