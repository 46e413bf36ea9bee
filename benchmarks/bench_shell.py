"""A gigabyte of output of `shell.bash`: through a running daemon, from a cage, over its HTTP API.

The floor is a loop of this process that reads the same command's output and drops it, through a
pipe or a pseudo-terminal as the daemon does. A terminal moves about 4 KB with each wake-up and is
the limit itself: what the daemon adds is the ratio, not the figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx

from scoreboard import Row, Target, at_least, at_most, row, show

PIPE_BYTES = 1_000_000_000
TERMINAL_BYTES = 50_000_000
ROUNDS = 3
MIN_MB_PER_S = 200.0
MIN_RATIO = 0.5
MAX_TERMINAL_RATIO = 2.0
MAX_GROWTH_MIB = 8.0

_PROJECT = """
version: 1
project: flood
primary:
  model: default
  system_prompt: x
  cage: {fs: [{mode: rw, path: .}], capabilities: [shell]}
  tools: {"shell.*": {enabled: true}}
"""
_MODEL = """
[models.default]
provider = "openai"
model = "none"
base_url = "http://127.0.0.1:9"
api_key = "none"
"""


def run() -> list[Row]:
    """Measure; return a row for pipes, one for terminals and one for memory."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder, _daemon(Path(folder)) as daemon:
        daemon.flood(PIPE_BYTES // 10, terminal=False)
        before = daemon.peak_mib()
        ours: dict[bool, list[float]] = {False: [], True: []}
        floor: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for terminal, size in ((False, PIPE_BYTES), (True, TERMINAL_BYTES)):
                floor[terminal].append(size / _bare(size, terminal=terminal) / 1e6)
                ours[terminal].append(size / daemon.flood(size, terminal=terminal) / 1e6)
        grown = daemon.peak_mib() - before
    pipe, bare = (statistics.median(one[False]) for one in (ours, floor))
    shown, bare_shown = (statistics.median(one[True]) for one in (ours, floor))
    return [
        row(
            "1 GB of shell output through a pipe (terminal: false)",
            pipe,
            "MB/s",
            against="a bare loop that reads a pipe",
            peer=bare,
            target=_enough(pipe, bare),
            samples=ours[False],
        ),
        row(
            "50 MB of shell output through a terminal",
            shown,
            "MB/s",
            against="a bare loop that reads a terminal",
            peer=bare_shown,
            target=at_most(MAX_TERMINAL_RATIO, bare_shown / shown, "x of the bare loop"),
            samples=ours[True],
        ),
        row(
            "memory of the daemon, grown by these floods",
            grown,
            "MiB",
            against="its peak after a flood of 100 MB",
            peer=before,
            target=at_most(MAX_GROWTH_MIB, grown, "MiB"),
        ),
    ]


def _enough(ours: float, bare: float) -> Target:
    # Where a bare loop itself is slow, the figure says something of the machine, not of us.
    if bare < MIN_MB_PER_S / MIN_RATIO:
        return at_least(MIN_RATIO, ours / bare, "x of the bare loop (a slow machine)")
    return at_least(MIN_MB_PER_S, ours, "MB/s")


def _command(size: int) -> str:
    return f"yes abcdefghijklmnopqrstuvwxyz0123456789 | head -c {size}"


def _bare(size: int, *, terminal: bool) -> float:
    """Return the seconds that a loop of reads takes for the same output."""
    ours, theirs = os.openpty() if terminal else os.pipe()
    begin = time.perf_counter()
    with subprocess.Popen(["/bin/sh", "-c", _command(size)], stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        with contextlib.suppress(OSError):  # a terminal ends with an error
            while os.read(ours, 1 << 18):
                pass
    took = time.perf_counter() - begin
    os.close(ours)
    assert child.returncode == 0
    return took


class _Daemon:
    def __init__(self, pid: int, client: httpx.Client, project: str) -> None:
        self._pid = pid
        self._client = client
        self._path = f"/api/v1/projects/{project}/tools/call"

    def flood(self, size: int, *, terminal: bool) -> float:
        """Return the seconds that the daemon takes from the call to its result."""
        params = {"command": _command(size), "terminal": terminal, "timeout": 600_000}
        begin = time.perf_counter()
        result = _answer(
            self._client.post(
                self._path, json={"agent": "primary", "tool": "shell.bash", "params": params}
            )
        )["result"]
        took = time.perf_counter() - begin
        assert (result["exit_code"], result["truncated"]) == (0, True)
        return took

    def peak_mib(self) -> float:
        """Return the most memory that it has had."""
        text = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024


@contextlib.contextmanager
def _daemon(folder: Path) -> Generator[_Daemon]:
    """Start a daemon with one project; end it afterwards."""
    home, root = folder / "h", folder / "flood"
    (root / ".kaged").mkdir(parents=True)
    (root / ".kaged/project.yaml").write_text(_PROJECT, encoding="utf-8")
    home.mkdir(mode=0o700)
    for name, text in (("config", '[daemon]\nbind = "127.0.0.1:0"\n'), ("local", _MODEL)):
        (home / f"{name}.toml").write_text(text, encoding="utf-8")
        (home / f"{name}.toml").chmod(0o600)
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kaged.cli", "daemon", "run"],
        env={**os.environ, "KAGED_HOME": str(home), "KAGED_READY_FD": str(writer)},
        pass_fds=[writer],
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as pipe:
            said = json.loads(pipe.readline() or b"{}")
        transport = httpx.HTTPTransport(uds=said["socket"])
        with httpx.Client(transport=transport, base_url="http://kaged", timeout=600) as client:
            body = {"root": str(root), "trust": True}
            loaded = _answer(client.post("/api/v1/projects", json=body))
            yield _Daemon(process.pid, client, loaded["id"])
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answer(response: httpx.Response) -> dict[str, Any]:
    if response.is_error:
        raise RuntimeError(f"the daemon refused: {response.text[:500]}")
    found: dict[str, Any] = response.json()
    return found


if __name__ == "__main__":
    show(run())
