"""A disk that is full for one daemon: what it appends to its files fails until it is free."""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager

from whole.harness.daemon import Daemon

ROOM_FOR_LOG = 16 * 1024


@contextmanager
def full_disk(daemon: Daemon) -> Generator[None]:
    """Let the daemon's database refuse to grow, while its log, which is small, still can."""
    log = daemon.home / "daemon.log"
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    room = log.stat().st_size + ROOM_FOR_LOG
    assert room < (daemon.home / "kaged.db-wal").stat().st_size, "the database may still write"
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))
