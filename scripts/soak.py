#!/usr/bin/env python3
"""Use a daemon hard and kill it again and again; at the end nothing acknowledged may be missing.

    make soak                        ten minutes
    make soak SOAK_S=60              as many seconds as you like; a kill every 30 s, at least two,
                                     and every kind of fault at least once
    make soak SOAK_SEED=7            the same choices again

Clients write files and issues, talk in sessions, call a plugin that dies, run commands that leave
programs behind, and use bridges that stall, die and send garbage; others hang up in the middle of
a request or a stream. Every 30 seconds the daemon is killed with SIGKILL and started anew. What a
client was told is done is written down, and looked for at the end; what a bridge did is there once
and not twice; the audit chain is verified; no process, cgroup, socket or temporary file may be
left, and doing everything over may not cost the daemon one more descriptor. The figures are printed
and written to build/soak.json, or to the file that SOAK_FIGURES names.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from soaking.clients import MIN_KILLS, Clients
from soaking.daemon_home import DaemonHome
from soaking.reckoning import complaints, left_over, look_for_leaks, reckon

KILL_EVERY_S = 30.0
CALM_S = 2.0  # no kill so close before the end
MEASURE_EVERY_S = 1.0
FIGURES = os.environ.get("SOAK_FIGURES") or Path(__file__).parents[1] / "build" / "soak.json"


async def _kill_now_and_then(home: DaemonHome, clients: Clients, seconds: float) -> None:
    pause_s = min(KILL_EVERY_S, seconds / (MIN_KILLS + 1))
    next_s = time.monotonic() + pause_s
    while clients.going:
        await asyncio.sleep(min(MEASURE_EVERY_S, max(0.0, next_s - time.monotonic())))
        home.measure()
        late = time.monotonic() > clients.until_s - CALM_S
        if time.monotonic() >= next_s and (not late or home.kills < MIN_KILLS):
            await home.kill()
            next_s = time.monotonic() + pause_s
            print(f"soak: kill {home.kills}, up again in {home.starts_s[-1]:.1f} s, "
                  f"{sum(clients.done.values())} things done", flush=True)  # fmt: skip


async def _soak(home: DaemonHome, clients: Clients, seconds: float) -> list[str]:
    await home.start()
    await home.set_up()
    clients.until_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        group.create_task(clients.work())
        group.create_task(_kill_now_and_then(home, clients, seconds))
    wrong = await reckon(home, clients)
    wrong += await look_for_leaks(home, clients, thorough=seconds >= KILL_EVERY_S)
    wrong += await asyncio.to_thread(home.end)
    wrong += await asyncio.to_thread(left_over, home)
    wrong += [
        f"{what}: {many} times" for what, many in clients.refused.items() if "internal" in what
    ]
    return wrong + complaints(home)


def _figures(home: DaemonHome, clients: Clients, seconds: float, seed: int) -> dict[str, Any]:
    return {
        "seconds": seconds, "seed": seed, "kills": home.kills,
        "done": dict(sorted(clients.done.items())),
        "faults": dict(sorted(clients.played.items())),
        "refused": dict(sorted(clients.refused.items())),
        "refusals": dict(sorted(clients.example.items())),
        "acknowledged": {
            "files": len(clients.files), "issues": len(clients.issues), "rows": len(clients.rows),
            "words": sum(len(said) for said in clients.sessions.values()),
            "notes": sum(len(words) for words in clients.noted.values()),
        },
        "first_start_s": round(home.starts_s[0], 2),
        "slowest_start_s": round(max(home.starts_s), 2),
        "peak_mib": round(home.peak_kib / 1024), "peak_descriptors": home.peak_fds,
        "load": [round(one, 2) for one in os.getloadavg()],
    }  # fmt: skip


def _table(figures: dict[str, Any]) -> str:
    rows = [(what, figures[what]) for what in
            ("seconds", "seed", "kills", "first_start_s", "slowest_start_s", "peak_mib",
             "peak_descriptors")]  # fmt: skip
    for group in ("acknowledged", "done", "faults", "refused"):
        rows += [(f"{group}: {name}", value) for name, value in figures[group].items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:>10}" for name, value in rows)


def main() -> int:
    """Run for as long as was asked; exit 1 when something is wrong."""
    seconds = float(os.environ.get("SOAK_S", "600"))
    seed = int(os.environ.get("SOAK_SEED") or secrets.randbelow(10**6))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(tempfile.mkdtemp(prefix="kaged-soak-")).resolve()
    folder.chmod(0o755)
    print(f"soak: {seconds:.0f} s, seed {seed}", flush=True)
    home = DaemonHome(folder)
    clients = Clients(home, seed)
    home.prepare()
    try:
        wrong = asyncio.run(_soak(home, clients, seconds))
    finally:
        home.abandon()
    figures = _figures(home, clients, seconds, seed) | {"wrong": wrong[:50]}
    written = Path(FIGURES)
    written.parent.mkdir(exist_ok=True)
    written.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(_table(figures))
    if wrong:
        print("\n".join(wrong[:50]))
        print(f"soak: {len(wrong)} things are wrong; the folder is kept: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("soak: everything that was acknowledged is there, and nothing was left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
