"""The interactive shell, driven from a terminal of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from kaged.cage import Pty, Spawner, Uncaged, UncagedRequest
from kaged.cage.collect import collect

PROGRAM = """
import asyncio, sys
from pathlib import Path
from kaged.cage import CageRequest, CageSettings, Spawner
from kaged.cage.shell import run_shell
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

async def main():
    spawner = Spawner(CageSettings(cache_dir=Path(sys.argv[1])))
    policy = CagePolicy(fs=(FsGrant(sys.argv[2], FsMode.RO),))
    report, _ = await run_shell(spawner, CageRequest("s", policy, ("/bin/sh",), cwd=sys.argv[2]))
    await spawner.close()
    print("ended with", report.exit_code)

asyncio.run(main())
"""


async def test_a_shell_runs_inside_and_gives_the_terminal_back(
    spawner: Spawner, cage_cache: Path, place: Path
) -> None:
    (place / "granted").touch()
    request = UncagedRequest(
        "test",
        Uncaged("a test plays the person at the terminal"),
        (sys.executable, "-c", PROGRAM, str(cage_cache), str(place)),
        env=(("PATH", "/usr/bin:/bin"), ("PYTHONPATH", ":".join(sys.path))),
        stdio=Pty(rows=40, cols=100),
    )
    process = await spawner.spawn(request)
    screen = process.stdout_fd
    assert screen is not None
    said = b""
    while b"$ " not in said:  # the prompt of the shell inside
        said += await asyncio.to_thread(os.read, screen, 1000)
    script = b"ls; id -u; stty size; ls /home; exit 7\n"
    done = await collect(process, script)
    text = done.stdout.decode()
    assert "granted" in text
    assert "1000" in text
    assert "40 100" in text
    assert "No such file" in text
    assert "ended with 7" in text
    assert done.report.exit_code == 0
