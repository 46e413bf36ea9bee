"""A folder with a real database, key and head file in it, for tests of the store."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kaged.audit import AuditEvent, AuditLimits, AuditLog, ChainKey, HeadFile, open_key
from kaged.audit.folding import FoldingLimits
from kaged.base import Clock, Ids
from kaged.store import MIGRATIONS, Migration, Store

LIMITS = AuditLimits(retry_first_s=60, retry_max_s=60)
# A corpus of attacks is larger than the share of one guest.
FOLDING = FoldingLimits(burst=100_000)


class StoreHome:
    """Where the files of one daemon lie; opens what a test needs and closes it at the end."""

    def __init__(self, root: Path, clock: Clock, ids: Ids) -> None:
        self.root = root
        self.clock = clock
        self.ids = ids
        self.database = root / "kaged.db"
        self.backups = root / "backups"
        self.head_file = HeadFile(root / "audit.head")
        self._open: list[Store | AuditLog] = []

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    @property
    def key(self) -> ChainKey:
        return open_key(self.root / "audit.key", chain_exists=False)

    async def store(
        self, migrations: Sequence[Migration] = MIGRATIONS, *, read_only: bool = False
    ) -> Store:
        store = await Store.open(
            self.url,
            clock=self.clock,
            ids=self.ids,
            backup_dir=self.backups,
            migrations=migrations,
            read_only=read_only,
        )
        self._open.append(store)
        return store

    async def log(self, store: Store, limits: AuditLimits = LIMITS) -> AuditLog:
        log = await AuditLog.open(
            store.audit,
            clock=self.clock,
            ids=self.ids,
            key=self.key,
            head_file=self.head_file,
            limits=limits,
            folding=FOLDING,
        )
        self._open.append(log)
        return log

    async def filled(self, count: int) -> None:
        """Write a chain of so many rows and close everything."""
        store = await self.store()
        log = await self.log(store)
        for number in range(count):
            await log.record(edited(f"{number}"))
        await self.close()

    def raw(self) -> sqlite3.Connection:
        """Open the file as a forger would, with the triggers out of the way."""
        conn = sqlite3.connect(self.database, isolation_level=None)
        conn.execute("DROP TRIGGER IF EXISTS audit_events_no_update")
        conn.execute("DROP TRIGGER IF EXISTS audit_events_no_delete")
        return conn

    def files(self) -> dict[str, str]:
        """Return the hash of every file, to see that nothing was touched."""
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        }

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


def edited(path: str) -> AuditEvent:
    """Make an event that gates nothing."""
    return AuditEvent("file.edited", {"path": path, "replacements": 1, "caller": "primary"})


def enabled(name: str) -> AuditEvent:
    """Make an event that gates."""
    return AuditEvent("plugin.enabled", {"name": name})


__all__ = ["LIMITS", "StoreHome", "edited", "enabled"]
