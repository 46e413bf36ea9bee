"""What the daemon and its commands cost: time and processor time until they answer, and memory.

Everything is measured from the outside with the real command, against a bare interpreter in the
same run.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scoreboard import Row, at_most, row, show

REPEATS = 7
VERSION_TARGET_MS = 150.0
READY_TARGET_S = 1.0
OPEN_TARGET_S = 1.2
COMMAND_TARGET_MS = 120.0
RSS_TARGET_MIB = 150.0

_KAGED = [sys.executable, "-P", "-m", "kaged.cli"]


def run() -> list[Row]:
    """Measure; return one row per promise."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        home = Path(folder) / "h"
        env = {**os.environ, "KAGED_HOME": str(home)}
        bare = _times([sys.executable, "-c", "pass"], env)
        version = _times([str(Path(sys.executable).with_name("kaged")), "--version"], env)
        ready, open_, cpu, rss = _daemon(env, home)
        command, command_cpu = _command(Path(folder))
        bare_rss = [_bare_rss()]
    return [
        _at_most("kaged --version", version, 1000, "ms", "python -c pass", bare, VERSION_TARGET_MS),
        _at_most("daemon ready, empty home", ready, 1, "s", "python -c pass", bare, READY_TARGET_S),
        _at_most(
            "daemon open: status answered, empty home",
            open_,
            1,
            "s",
            "the daemon's own word that it is ready",
            ready,
            OPEN_TARGET_S,
        ),
        row("processor time of the daemon until open", statistics.median(cpu), "s", samples=cpu),
        _at_most(
            "kaged tool call file.read, the daemon running",
            command,
            1000,
            "ms",
            "python -c pass",
            bare,
            COMMAND_TARGET_MS,
        ),
        row(
            "processor time of that command",
            statistics.median(command_cpu) * 1000,
            "ms",
            samples=command_cpu,
        ),
        _at_most("daemon RSS, idle", rss, 1, "MiB", "bare interpreter", bare_rss, RSS_TARGET_MIB),
    ]


def _times(argv: list[str], env: dict[str, str]) -> list[float]:
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return times


def _command(folder: Path) -> tuple[list[float], list[float]]:
    """Return the time of a whole `kaged tool call file.read`, and its processor time."""
    home, root = folder / "c", folder / "project"
    _empty_home(home)
    (root / ".kaged").mkdir(parents=True)
    (root / ".kaged" / "project.yaml").write_text(
        "version: 1\nproject: sample\nprimary:\n  model: default\n  system_prompt: You read.\n"
        '  cage: {fs: [{mode: ro, path: .}]}\n  tools: {"*": {enabled: true}}\n',
        encoding="utf-8",
    )
    (root / "a.txt").write_text("one line\n", encoding="utf-8")
    env = {**os.environ, "KAGED_HOME": str(home)}
    kaged = str(Path(sys.executable).with_name("kaged"))

    def command(*words: str) -> None:
        done = subprocess.run([kaged, *words], env=env, check=True, capture_output=True)
        if words[0] == "tool" and b"one line" not in done.stdout:
            raise RuntimeError(f"the file was not read: {done.stdout!r}")

    command("project", "load", "--trust", str(root))
    times: list[float] = []
    processor: list[float] = []
    try:
        for _ in range(REPEATS):
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            command("tool", "call", "file.read", "path=a.txt", "--project", str(root))
            times.append(time.perf_counter() - started)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            processor.append(used)
    finally:
        command("daemon", "stop")
    return times, processor


def _daemon(
    env: dict[str, str], home: Path
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Start daemons on an empty home; return times to ready and open, processor time, memory.

    Ready means: the daemon says so on its pipe, which it does once it answers requests. Open means:
    it has described itself, which it does once projects, plugins and tools are there.
    """
    times: list[float] = []
    opened: list[float] = []
    processor: list[float] = []
    rss: list[float] = []
    for number in range(REPEATS):
        own = {**env, "KAGED_HOME": f"{home}{number}"}
        _empty_home(Path(f"{home}{number}"))
        reader, writer = os.pipe()
        started = time.perf_counter()
        process = subprocess.Popen(
            [*_KAGED, "daemon", "run"],
            env={**own, "KAGED_READY_FD": str(writer)},
            pass_fds=[writer],
            stderr=subprocess.DEVNULL,
        )
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = json.loads(pipe.readline() or b"{}")
        times.append(time.perf_counter() - started)
        if said.get("ready") is not True:
            raise RuntimeError(f"the daemon did not come up: {said}")
        _ask_status(said["socket"])
        opened.append(time.perf_counter() - started)
        processor.append(_processor_s(process.pid))
        status = subprocess.run(
            [*_KAGED, "status", "--json"], env=own, check=True, capture_output=True
        )
        assert json.loads(status.stdout)["pid"] == process.pid
        rss.append(_rss_mib(process.pid))
        process.terminate()
        process.wait(timeout=30)
    return times, opened, processor, rss


def _ask_status(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(path)
        sock.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: kaged\r\nConnection: close\r\n\r\n")
        if not sock.recv(4096).startswith(b"HTTP/1.1 200 "):
            raise RuntimeError("the daemon did not describe itself")


def _empty_home(home: Path) -> None:
    """Make a home that holds nothing but the wish for any free port."""
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[daemon]\nbind = "127.0.0.1:0"\n', encoding="utf-8")
    (home / "config.toml").chmod(0o600)


def _bare_rss() -> float:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        while (rss := _rss_mib(process.pid)) < 5:
            time.sleep(0.01)
        return rss
    finally:
        process.kill()
        process.communicate()


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _at_most(
    work: str,
    ours: list[float],
    factor: float,
    unit: str,
    against: str,
    peer: list[float],
    limit: float,
) -> Row:
    """Make the row of a figure that has a limit; the medians of both count."""
    figure = statistics.median(ours) * factor
    return row(
        work,
        figure,
        unit,
        against=against,
        peer=statistics.median(peer) * factor,
        target=at_most(limit, figure, unit),
        samples=ours,
    )


if __name__ == "__main__":
    show(run())
