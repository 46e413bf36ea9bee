"""What a caged plugin costs the host that writes as fast as it can: memory, and turns of the loop.

Every flood runs for some seconds in a cage of its own against a real host with its audit log. The
memory is the host's own, at its highest during the flood, less what it was before. Beside it stands
how long other work on the event loop had to wait at worst.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
import uvloop

from scoreboard import Row, at_most, row, show

FLOOD_S = 4.0
TICK_S = 0.01
MEMORY_TARGET_MIB = 32.0

_MANIFEST = """\
name: flood
version: 1.0.0
kaged_api: 1
description: Writes as fast as it can.
command: [/usr/bin/env, python3, ./main.py]
capabilities: []
methods: [a.b]
"""
_MAIN = """\
import json, os, sys
hello = json.loads(sys.stdin.readline())
answer = {"name": "flood", "version": "1.0.0", "api_version": 1, "methods": ["a.b"]}
print(json.dumps({"jsonrpc": "2.0", "id": hello["id"], "result": answer}), flush=True)
sys.stdin.readline()
piece = %r * 500
while True:
    os.write(%d, piece)
"""
_NOTICE = b'{"jsonrpc":"2.0","method":"a.b","params":{"text":"%s"}}\n' % (b"x" * 200)
_ANSWER = b'{"jsonrpc":"2.0","id":77,"result":"%s"}\n' % (b"x" * 200)
_REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"kaged.storage.query","params":{"sql":"SELECT 1"}}\n'
FLOODS = {
    "noise on stdout": (b"this is no JSON at all\n", 1),
    "a line without end on stdout": (b"[" * 100, 1),
    "lines on stderr": (b"a short line\n", 2),
    "a line without end on stderr": (b"x" * 100, 2),
    "notifications": (_NOTICE, 1),
    "answers to nothing": (_ANSWER, 1),
    "requests": (_REQUEST, 1),
}


def run() -> list[Row]:
    """Flood the host in each way; one row for each."""
    return [uvloop.run(_flood(name, *how)) for name, how in FLOODS.items()]


async def _flood(name: str, piece: bytes, fd: int) -> Row:
    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.cage import CageSettings, Spawner
    from kaged.config.manifest import parse_manifest
    from kaged.plugins.installed import InstalledPlugin
    from kaged.plugins.parts import HostParts, HostSettings
    from kaged.plugins.plugin import HostedPlugin
    from kaged.store import Store, sqlite_url

    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-"))
    folder.chmod(0o755)
    directory = folder / "plugin"
    directory.mkdir()
    (directory / "main.py").write_text(_MAIN % (piece, fd), encoding="utf-8")
    (directory / "kaged-plugin.yaml").write_text(_MANIFEST, encoding="utf-8")
    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(folder / "db"), clock=clock, ids=ids, backup_dir=folder / "backup"
    )
    audit = await AuditLog.open(store.audit, clock=clock, ids=ids, key=ChainKey(os.urandom(32)))
    spawner = Spawner(CageSettings(cache_dir=folder / "cache"))
    parts = HostParts(
        spawner=spawner,
        audit=audit,
        clock=clock,
        ids=ids,
        settings=HostSettings(daemon_version="0"),
        log=structlog.wrap_logger(None, processors=[_drop]),
    )
    manifest = parse_manifest(_MANIFEST).value
    plugin = HostedPlugin(InstalledPlugin(directory, folder / "data", manifest, "flood"), parts)
    try:
        before = most = _rss_mib()
        await plugin.start()
        worst_s = 0.0
        ends = time.perf_counter() + FLOOD_S
        while (now := time.perf_counter()) < ends:
            await asyncio.sleep(TICK_S)
            worst_s = max(worst_s, time.perf_counter() - now - TICK_S)
            most = max(most, _rss_mib())
    finally:
        await plugin.stop("bench ended")
        await audit.close()
        await store.close()
        await spawner.close()
        shutil.rmtree(folder, ignore_errors=True)
    grown = most - before
    return row(
        f"memory of the host under a flood: {name} (other work waited {worst_s * 1000:.0f} ms "
        f"at most in {FLOOD_S:g} s)",
        grown,
        "MiB more",
        target=at_most(MEMORY_TARGET_MIB, grown, "MiB"),
    )


def _drop(*_: object) -> Any:
    raise structlog.DropEvent


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1024 / 1024


if __name__ == "__main__":
    show(run())
