"""How long `/status` takes while guests send the largest messages that they may, of every kind.

A process of its own asks for the status every ten milliseconds and counts from when it should have
asked, so that one long stop counts as all the requests that it held up. The floor is the same
daemon with nothing else to do, asked in the same way just before.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scoreboard import Row, at_most, quick, row, show
from whole.edge.test_largest_messages import KINDS, LARGE, PLUGIN, SCRIPT, SERVER, SHAPES  # pyright: ignore[reportMissingImports] - beside the tests
from whole.harness.daemon import Daemon, wait_for  # pyright: ignore[reportMissingImports] - beside the tests
from whole.harness.guests import STORAGE, Guest  # pyright: ignore[reportMissingImports] - beside the tests
from whole.harness.project import Project  # pyright: ignore[reportMissingImports] - beside the tests
from whole.harness.scripts import Scripts  # pyright: ignore[reportMissingImports] - beside the tests

TARGET_MS = 50.0
IDLE_S = 3.0
ROUNDS = 1 if quick() else 4
COMMANDS = {"large": 11_000, "long": 4_000_000, "store": 100_000, "notes": 10}
CONFIG = """\
[mcp.servers.large]
command = {argv}
cage = {{ fs = [{{ mode = "ro", path = "{guests}" }}] }}
"""
_POLL = """\
import socket, sys, threading, time
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
answers = line.makefile("rb")
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print("asking", flush=True)
taken = []
due = time.perf_counter()
while not over.is_set():
    line.sendall(b"GET /api/v1/status HTTP/1.1\\r\\nHost: kaged\\r\\n\\r\\n")
    status, size = answers.readline(), 0
    while (field := answers.readline()) != b"\\r\\n":
        if field.lower().startswith(b"content-length:"):
            size = int(field.split(b":")[1])
    answers.read(size)
    assert b" 200 " in status, status
    now = time.perf_counter()
    while due <= now:  # all that should have been asked meanwhile waited as well
        taken.append(now - due)
        due += 0.01
    time.sleep(max(0.0, due - time.perf_counter()))
print(*taken, sep="\\n")
"""


def run() -> list[Row]:
    """Measure; one row for each kind of guest."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        top = Path(folder).resolve()
        guests = top / "guests"
        guests.mkdir()
        (guests / "server.py").write_text(SERVER, encoding="utf-8")
        (guests / LARGE.name).write_text(LARGE.read_text(encoding="utf-8"), encoding="utf-8")
        argv = json.dumps([sys.executable, str(guests / "server.py")])
        daemon = Daemon(top / "h", config=CONFIG.format(argv=argv, guests=guests), forked=False)
        daemon.start()
        try:
            return _rows(daemon, top)
        finally:
            daemon.close()


def _rows(daemon: Any, top: Path) -> list[Row]:
    project = daemon.load(Project(top / "work"))
    files = {"large.py": LARGE.read_text(encoding="utf-8")}
    guest = Guest(daemon, top, PLUGIN, files=files, capabilities=STORAGE)
    guest.run()
    scripts = Scripts(daemon, project)
    scripts.load(large=SCRIPT)
    wait_for(lambda: daemon.get("/mcp/servers/large")["state"] == "running", "the server")

    def plugin() -> None:
        for kind in KINDS:
            for shape in SHAPES:
                body = {"kind": kind, "shape": shape}
                daemon.client.post(f"/api/v1/plugins/{guest.name}/call/a.b", json=body)

    def server() -> None:
        for shape in SHAPES:
            for kind in ("text", "structured"):
                body = {"tool": "large.look", "params": {"shape": shape, "kind": kind}}
                daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)

    def script() -> None:
        for command, size in COMMANDS.items():
            scripts.run(command, str(size))

    idle_ms = _p99_ms(daemon, lambda: time.sleep(IDLE_S))
    found: list[Row] = []
    for who, work in (("a plugin", plugin), ("an MCP server", server), ("a script", script)):
        rounds = [_p99_ms(daemon, work) for _ in range(ROUNDS)]
        p99_ms = sorted(rounds)[len(rounds) // 2]
        found.append(
            row(
                f"status while {who} sends the largest messages, p99",
                p99_ms,
                "ms",
                against="the same daemon with nothing else to do",
                peer=idle_ms,
                target=at_most(TARGET_MS, p99_ms, "ms"),
                samples=rounds,
            )
        )
    assert len(guest.rows("plugin.spawned")) == 1, "the plugin was ended meanwhile"
    return found


def _p99_ms(daemon: Any, work: Callable[[], None]) -> float:
    taken: list[float] = []
    with _asking(daemon, taken):
        work()
    taken.sort()
    return taken[math.ceil(len(taken) * 0.99) - 1] * 1000


@contextmanager
def _asking(daemon: Any, taken: list[float]) -> Generator[None]:
    socket = str(daemon.home / "run" / "kaged.sock")
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _POLL, socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        assert asking.stdout.readline() == "asking\n"
        yield
        asking.stdin.close()
        taken += [float(line) for line in asking.stdout]


if __name__ == "__main__":
    show(run())
