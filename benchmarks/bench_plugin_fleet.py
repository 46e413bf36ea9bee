"""Fifty and a hundred caged plugins under the real daemon: time until all of them run, idle CPU.

Ready counts from the start of the process until every plugin has shaken hands, which is later than
the daemon's own word. Idle CPU is that of the daemon and all its plugins together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import httpx

from scoreboard import Row, at_most, row, show

PLUGINS = 50
READY_TARGET_S = 5.0
MORE_PLUGINS = 100
MORE_TARGET_S = 6.0
IDLE_TARGET_PERCENT = 2.0
IDLE_S = 15.0
STARTS = 3
PATIENCE_S = 120.0
_KAGED = [sys.executable, "-P", "-m", "kaged.cli"]
_TICKS = os.sysconf("SC_CLK_TCK")

_MAIN = """\
import sys
sys.path.insert(0, "/opt/kaged/sdk/python")
from kaged.sdk import create_plugin
async def echo(params, context): return params
create_plugin(%r, "1.0.0", methods={"echo.say": echo}).start()
"""
_MANIFEST = """\
name: %s
version: 1.0.0
kaged_api: 1
description: Echoes.
command: [/usr/bin/env, python3, ./main.py]
capabilities: []
methods: [echo.say]
"""


def run() -> list[Row]:
    """Measure; return one row per promise."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        root = Path(folder)
        home = root / "h"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text('[daemon]\nbind = "127.0.0.1:0"\n', encoding="utf-8")
        (home / "config.toml").chmod(0o600)
        with _Daemon(home) as daemon:
            for number in range(PLUGINS):
                daemon.install(_write(root / f"fleet-{number}", f"fleet-{number}"))
        said: list[float] = []
        running: list[float] = []
        idle = 0.0
        for start in range(STARTS):
            with _Daemon(home) as daemon:
                said.append(daemon.ready_s)
                running.append(daemon.until_all_run())
                if start == STARTS - 1:
                    time.sleep(2.0)
                    before = daemon.cpu_s()
                    time.sleep(IDLE_S)
                    idle = (daemon.cpu_s() - before) / IDLE_S * 100
        with _Daemon(home) as daemon:
            for number in range(PLUGINS, MORE_PLUGINS):
                daemon.install(_write(root / f"fleet-{number}", f"fleet-{number}"))
        more: list[float] = []
        more_said: list[float] = []
        for _ in range(STARTS):
            with _Daemon(home) as daemon:
                more_said.append(daemon.ready_s)
                more.append(daemon.until_all_run(MORE_PLUGINS))
    ready_s = min(running)
    return [
        row(
            f"daemon with {PLUGINS} caged plugins, all of them running",
            ready_s,
            "s",
            against="the daemon's own word that it is ready",
            peer=min(said),
            target=at_most(READY_TARGET_S, ready_s, "s"),
            samples=running,
        ),
        row(
            f"daemon with {MORE_PLUGINS} caged plugins, all of them running",
            min(more),
            "s",
            against="the daemon's own word that it is ready",
            peer=min(more_said),
            target=at_most(MORE_TARGET_S, min(more), "s"),
            samples=more,
        ),
        row(
            f"CPU of the daemon and {PLUGINS} plugins, idle",
            idle,
            "% of one CPU",
            target=at_most(IDLE_TARGET_PERCENT, idle, "%"),
        ),
    ]


def _write(directory: Path, name: str) -> Path:
    directory.mkdir()
    (directory / "main.py").write_text(_MAIN % name, encoding="utf-8")
    (directory / "kaged-plugin.yaml").write_text(_MANIFEST % name, encoding="utf-8")
    return directory


class _Daemon:
    def __init__(self, home: Path) -> None:
        self._home = home
        reader, writer = os.pipe()
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [*_KAGED, "daemon", "run"],
            env={**os.environ, "KAGED_HOME": str(home), "KAGED_READY_FD": str(writer)},
            pass_fds=[writer],
            stderr=subprocess.DEVNULL,
        )
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = json.loads(pipe.readline() or b"{}")
        self.ready_s = time.perf_counter() - self._started
        if said.get("ready") is not True:
            raise RuntimeError(f"the daemon did not come up: {said}")
        sockets = [path for path in home.rglob("*.sock") if path.is_socket()]
        transport = httpx.HTTPTransport(uds=str(sockets[0]))
        self._http = httpx.Client(transport=transport, base_url="http://kaged", timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(timeout=60)

    def install(self, directory: Path) -> None:
        shown = self._post("plugins/preview", {"path": str(directory)})
        self._post("plugins", {"path": str(directory), "digest": shown["digest"]})
        self._post(f"plugins/{directory.name}/enable", {})

    def until_all_run(self, plugins: int = PLUGINS) -> float:
        states: list[str] = []
        while time.perf_counter() - self._started < PATIENCE_S:
            answer = self._http.get("/api/v1/plugins").raise_for_status().json()
            states = [one["state"] for one in answer["items"]]
            if len(states) == plugins and set(states) == {"running"}:
                return time.perf_counter() - self._started
            time.sleep(0.02)
        raise RuntimeError(f"not all plugins run: {states}")

    def cpu_s(self) -> float:
        """Count the CPU time of the daemon and everything below it."""
        return sum(ticks for _, ticks in self.family()) / _TICKS

    def family(self) -> list[tuple[int, int]]:
        """Return the daemon and everything below it: the number of each and its CPU ticks."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
        family = {self._process.pid}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return [(pid, ticks[pid]) for pid in family]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._http.post(f"/api/v1/{path}", json=body).raise_for_status().json()


if __name__ == "__main__":
    show(run())
