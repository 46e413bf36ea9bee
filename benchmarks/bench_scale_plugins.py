"""What one more caged plugin costs a daemon that has many: time until it runs, and memory.

The real daemon is started anew for each point, with that many plugins installed. What the same
daemon takes without any is left out. Memory is that of the daemon and everything below it, as
proportional shares, so that pages which plugins share are counted once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench_plugin_fleet import _Daemon, _write
from scoreboard import Curve, Point, counts, quick, show

POINTS = counts((1, 10, 25, 50, 100), (1, 2))
STARTS = 1 if quick() else 2


def run() -> list[Curve]:
    """Measure both curves."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        root = Path(folder)
        home = root / "h"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text('[daemon]\nbind = "127.0.0.1:0"\n', encoding="utf-8")
        (home / "config.toml").chmod(0o600)
        empty_s, empty_mib = _started(home, 0)
        times: list[Point] = []
        sizes: list[Point] = []
        installed = 0
        for count in POINTS:
            with _Daemon(home) as daemon:
                for number in range(installed, count):
                    daemon.install(_write(root / f"fleet-{number}", f"fleet-{number}"))
            installed = count
            running_s, mib = _started(home, count)
            times.append(Point(count, (running_s - empty_s) / count * 1000))
            sizes.append(Point(count, (mib - empty_mib) / count))
    return [
        Curve(
            "plugins 1 to 100",
            "until a plugin runs, all started together",
            "plugins",
            "ms each",
            tuple(times),
        ),
        Curve("plugins 1 to 100", "memory of a plugin", "plugins", "MiB each", tuple(sizes)),
    ]


def _started(home: Path, count: int) -> tuple[float, float]:
    """Start the daemon a few times; return the best time until all run, and its memory then."""
    times: list[float] = []
    mib = 0.0
    for _ in range(STARTS):
        with _Daemon(home) as daemon:
            times.append(daemon.until_all_run(count) if count else daemon.ready_s)
            mib = sum(_share_kib(pid) for pid, _ in daemon.family()) / 1024
    return min(times), mib


def _share_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0  # it ended meanwhile
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    show(run())
