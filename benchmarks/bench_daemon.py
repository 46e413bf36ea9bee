"""What the daemon and its command cost: `kaged --version`, time to ready, memory when idle.

Everything is measured from the outside with the real command, against a bare interpreter in the
same run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 7
VERSION_TARGET_MS = 150.0
READY_TARGET_S = 1.0
RSS_TARGET_MIB = 150.0

_KAGED = [sys.executable, "-P", "-m", "kaged.cli"]


def run() -> list[dict[str, Any]]:
    """Measure; give one row per promise."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        home = Path(folder) / "h"
        env = {**os.environ, "KAGED_HOME": str(home)}
        bare = _median([sys.executable, "-c", "pass"], env)
        version = _median([str(Path(sys.executable).with_name("kaged")), "--version"], env)
        ready, rss = _daemon(env, home)
        bare_rss = _bare_rss()
    return [
        _row("kaged --version", version * 1000, "ms", "python -c pass", bare * 1000,
             VERSION_TARGET_MS),
        _row("daemon ready, empty home", ready, "s", "python -c pass", bare, READY_TARGET_S),
        _row("daemon RSS, idle", rss, "MiB", "bare interpreter", bare_rss, RSS_TARGET_MIB),
    ]  # fmt: skip


def _median(argv: list[str], env: dict[str, str]) -> float:
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _daemon(env: dict[str, str], home: Path) -> tuple[float, float]:
    """Start daemons on an empty home; give the median time to ready and the last one's memory.

    Ready means: the daemon says so on its pipe, which it does once it answers requests.
    """
    times: list[float] = []
    rss = 0.0
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
        status = subprocess.run(
            [*_KAGED, "status", "--json"], env=own, check=True, capture_output=True
        )
        assert json.loads(status.stdout)["pid"] == process.pid
        rss = _rss_mib(process.pid)
        process.terminate()
        process.wait(timeout=30)
    return statistics.median(times), rss


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


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _row(
    work: str, ours: float, unit: str, against: str, peer: float, limit: float
) -> dict[str, Any]:
    return {
        "work": work,
        "ours": round(ours, 3),
        "unit": unit,
        "against": against,
        "peer": round(peer, 3),
        "ratio": round(ours / peer, 2) if peer else None,
        "target": f"<= {limit:g} {unit}",
        "verdict": "met" if ours <= limit else "missed",
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
