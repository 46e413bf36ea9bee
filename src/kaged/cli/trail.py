"""Reads the audit log for the command line: from the daemon, or directly from the files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kaged.audit import AuditFilter, ChainKey, HeadFile, VerifyReport, load_key
from kaged.base import Ids, KagedError, SystemClock
from kaged.cli.context import locations, quiet_logs, require_own_daemon
from kaged.config.settings import Settings, read_settings
from kaged.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


def settings() -> Settings:
    """Read the settings that say where the audit log is."""
    quiet_logs()
    return read_settings(locations(), os.environ)


def key_of(found: Settings) -> ChainKey:
    """Load the key of the audit log.

    Raises:
        KagedError: `audit_key_missing`; there is none.
    """
    path = found.places.audit_key
    try:
        return load_key(path)
    except FileNotFoundError:
        raise KagedError(
            f"There is no audit key at {path}.",
            code="audit_key_missing",
            fix="Create one with `kaged daemon start`, or restore the key from your backup.",
            path=str(path),
        ) from None


def with_store(work: Callable[[Store, Settings], Awaitable[T]]) -> T:
    """Run `work` on the store, opened for looking only, beside a daemon or without one."""

    async def run() -> T:
        found = settings()
        async with _opened(found) as store:
            return await work(store, found)

    return asyncio.run(run())


def query_offline(wanted: AuditFilter, limit: int) -> list[dict[str, Any]]:
    """Return the newest rows that fit, newest first."""

    async def work(store: Store, _settings: Settings) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(rows) < limit:
            page = await store.audit.query(wanted, cursor, limit - len(rows))
            rows += [dict(row.to_json()) for row in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        return rows

    return with_store(work)


def verify_offline() -> VerifyReport:
    """Verify the whole log."""

    async def work(store: Store, found: Settings) -> VerifyReport:
        return await store.audit.verify(key_of(found), HeadFile(found.audit_head))

    return with_store(work)


def export_offline(wanted: AuditFilter, write: Callable[[bytes], object]) -> None:
    """Write the rows that fit as an export."""

    async def work(store: Store, found: Settings) -> None:
        async for piece in store.audit.export(key_of(found), wanted):
            write(piece)

    with_store(work)


def follow() -> Iterator[dict[str, Any]]:
    """Yield audit rows as they happen, until the daemon closes the connection."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import unix_connect

    require_own_daemon("Read the log in pages: `kaged audit tail`.")
    path = str(locations().socket)
    uri = "ws://kaged/api/v1/events?topics=audit"
    with unix_connect(path, uri, open_timeout=10, compression=None) as stream:
        try:
            for text in stream:
                message = json.loads(text)
                if message["type"] == "event":
                    yield message["data"]
                elif message["type"] == "hello":
                    yield {}
        except ConnectionClosed:
            return


@asynccontextmanager
async def _opened(found: Settings) -> AsyncGenerator[Store]:
    clock = SystemClock()
    store = await Store.open(
        found.database_url,
        clock=clock,
        ids=Ids(clock),
        backup_dir=found.places.backup_dir,
        read_only=True,
    )
    try:
        yield store
    finally:
        await store.close()
