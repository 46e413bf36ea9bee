"""A host with bridges that never answer, and programs that left them; waits to be killed.

`python stalled_bridges.py FOLDER`. Says the process ids, each on a line: a bridge, its deserter.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kaged.cage import CageSettings, Spawner
from kaged.services.providers.bridge_command import BridgeSpec
from kaged.services.providers.bridge_process import BridgePlace, BridgeRunner

BRIDGES = 3
SCRIPT = "trap '' TERM HUP; setsid sleep 600 >/dev/null 2>&1 & echo $! > {file}; sleep 600; true"


async def main(folder: Path) -> None:
    spawner = Spawner(CageSettings(cache_dir=folder / "cache", ask_systemd=False))
    env = (("PATH", "/usr/bin:/bin"),)
    for number in range(BRIDGES):
        told = folder / f"left{number}"
        command = ("/bin/sh", "-c", SCRIPT.format(file=told))
        spec = BridgeSpec(f"b{number}", f"b{number}", command)
        place = BridgePlace(command, env, folder / "bridges")
        runner = BridgeRunner(spec, place, spawner, asyncio.Semaphore(BRIDGES))
        process = await runner.spawn()
        while not told.exists() or not told.read_text(encoding="ascii"):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)
        sys.stdout.write(f"{process.pid}\n{told.read_text(encoding='ascii')}")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
