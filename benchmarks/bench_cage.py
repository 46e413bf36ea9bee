"""What a full cage costs: time to first byte, stdio round trips, many cages at once.

Everything is compared with the same program started bare, in turns in one run, so that a busy
machine slows both. Run it alone with `python benchmarks/bench_cage.py [bare interpreter …]`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kaged.base import JsonObject
from kaged.cage import CageProcess, CageRequest, CageSettings, Spawner, Uncaged, UncagedRequest
from kaged.cage.net import NetGate
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode

STARTS = 25
ADDED_TARGET_MS = 15.0
FLOOR_TARGET = 1.5
ROUND_TRIPS = 3000
ROUND_TRIP_TARGET = 1.05
CROWD = 200
CROWD_AT_ONCE = 8
SPAWNS = 1000

# The default share of 256 is a quarter of what a bare program gets from a busy machine. That is the
# operator's wish and not the cage's cost, so both sides have the same share here.
LIMITS = CageLimits(cpu_shares=1024)

PROGRAMS: dict[str, tuple[str, ...]] = {
    "bash": ("bash", "-c", "echo up; read x"),
    "python": ("python3", "-c", "import sys; print('up', flush=True); sys.stdin.read()"),
    "node": ("node", "-e", "console.log('up'); process.stdin.resume()"),
    "bun": ("bun", "-e", "console.log('up'); process.stdin.resume()"),
}
# Bun is no package of the distribution: `scripts/setup --tests` puts one here.
TOOLS = Path(__file__).resolve().parents[1] / "build" / "tools" / "node_modules" / ".bin"
SEARCH = f"/usr/bin:/usr/local/bin:{os.environ.get('PATH', '')}:{TOOLS}"
# What a plugin does with a call, and no more: read a line, parse it, answer it.
ECHO = (
    "import json, sys\n"
    "read, write, flush = sys.stdin.buffer.readline, sys.stdout.buffer.write, sys.stdout.flush\n"
    "for line in iter(read, b''):\n"
    "    call = json.loads(line)\n"
    "    reply = {'jsonrpc': '2.0', 'id': call['id'], 'result': {'status': 'ok'}}\n"
    "    write(json.dumps(reply).encode() + b'\\n'); flush()\n"
)


def run() -> list[dict[str, Any]]:
    """Measure; give one row per promise."""
    return asyncio.run(_run())


async def _run() -> list[dict[str, Any]]:
    folder = _folder()
    gate = NetGate(_ignore)
    settings = CageSettings(cache_dir=folder / "cache", search_path=SEARCH)
    spawner = Spawner(settings, gate=gate)
    try:
        await gate.start(spawner.facts.bwrap)
        rows = [
            await _first_byte(spawner, folder / "plugin", name, command)
            for name, command in PROGRAMS.items()
            if shutil.which(command[0], path=SEARCH) is not None
        ]
        rows.append(await _against_plain_bwrap(spawner))
        rows.append(await _first_byte(spawner, folder / "plugin", "python", net=True))
        rows.append(await _round_trip(spawner))
        rows += await _crowd(spawner)
        rows.append(await _leaks(spawner))
        return rows
    finally:
        await spawner.close()
        await gate.close()
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-cage-"))
    folder.chmod(0o755)
    (folder / "plugin").mkdir(mode=0o755)
    return folder


def _ignore(_: object) -> None:
    """Keep no audit event."""


async def _first_byte(
    spawner: Spawner,
    plugin: Path,
    name: str,
    command: tuple[str, ...] | None = None,
    *,
    net: bool = False,
) -> dict[str, Any]:
    words = command or PROGRAMS[name]
    policy = CagePolicy(
        fs=(FsGrant(str(plugin), FsMode.RO),),
        net=(NetTarget("api.test", 443),) if net else (),
        limits=LIMITS,
    )
    caged = CageRequest("bench", policy, words, home=str(plugin))
    program = Path(str(shutil.which(words[0], path=SEARCH))).resolve()
    bare = UncagedRequest(
        "bench",
        Uncaged("a benchmark's bare peer"),
        (str(program), *words[1:]),
        env=(("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")),
    )
    await _time_to_first_byte(spawner, caged)
    await _time_to_first_byte(spawner, bare)
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(STARTS):
        ours.append(await _time_to_first_byte(spawner, caged))
        peer.append(await _time_to_first_byte(spawner, bare))
    added = statistics.median(ours) - statistics.median(peer)
    what = f"{name}, full cage with a network grant" if net else f"{name}, full cage"
    return {
        "work": f"time to first byte over bare: {what}",
        "ours": round(statistics.median(ours) * 1000, 2),
        "unit": "ms",
        "against": "the same program started bare",
        "peer": round(statistics.median(peer) * 1000, 2),
        "ratio": round(statistics.median(ours) / statistics.median(peer), 2),
        "added_ms": round(added * 1000, 2),
        "best_added_ms": round((min(ours) - min(peer)) * 1000, 2),
        "target": f"<= +{ADDED_TARGET_MS:g} ms",
        "verdict": "ok" if added * 1000 <= ADDED_TARGET_MS else "missed",
    }


async def _against_plain_bwrap(spawner: Spawner) -> dict[str, Any]:
    """Compare with the sandbox tool by hand: the same namespaces, no limits, filter or gate.

    On a busy machine everything is slower; this ratio is what the cage itself adds.
    """
    words = ("/bin/sh", "-c", "echo up; read x")
    options = (
        "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-net --disable-userns "
        "--uid 1000 --gid 1000 --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr "
        "--symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc "
        "--dev /dev --tmpfs /tmp --tmpfs /run --remount-ro /dev --remount-ro /proc --remount-ro /"
    )
    plain = UncagedRequest(
        "bench",
        Uncaged("a benchmark's peer"),
        (str(spawner.facts.bwrap), *options.split(), "--", *words),
    )
    caged = CageRequest("bench", CagePolicy(limits=LIMITS), words)
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(STARTS):
        ours.append(await _time_to_first_byte(spawner, caged))
        peer.append(await _time_to_first_byte(spawner, plain))
    ratio = statistics.median(ours) / statistics.median(peer)
    return {
        "work": "time to first byte of sh: full cage (limits, filter, strict programs)",
        "ours": round(statistics.median(ours) * 1000, 2),
        "unit": "ms",
        "against": "bwrap by hand with the same namespaces",
        "peer": round(statistics.median(peer) * 1000, 2),
        "ratio": round(ratio, 2),
        "target": f"<= {FLOOR_TARGET}x",
        "verdict": "ok" if ratio <= FLOOR_TARGET else "missed",
    }


async def _time_to_first_byte(spawner: Spawner, request: CageRequest | UncagedRequest) -> float:
    started = time.perf_counter()
    process = await spawner.spawn(request)
    await _readable_byte(process)
    took = time.perf_counter() - started
    process.close()
    await process.wait()
    return took


async def _readable_byte(process: CageProcess) -> None:
    loop = asyncio.get_running_loop()
    fd = process.stdout_fd
    assert fd is not None
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        async with asyncio.timeout(30):
            await ready
    finally:
        loop.remove_reader(fd)
    assert os.read(fd, 1) == b"u"


async def _round_trip(spawner: Spawner) -> dict[str, Any]:
    """Ping-pong over the pipes, blocking, in turns: the cage adds nothing to a byte on its way.

    Everyone sits on one processor: waking another, idle one costs more than the message.
    """
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        return await _round_trip_pinned(spawner)
    finally:
        os.sched_setaffinity(0, processors)


async def _round_trip_pinned(spawner: Spawner) -> dict[str, Any]:
    command = ("/usr/bin/python3", "-u", "-c", ECHO)
    caged = await spawner.spawn(CageRequest("bench", CagePolicy(limits=LIMITS), command))
    bare = await spawner.spawn(UncagedRequest("bench", Uncaged("a benchmark's peer"), command))
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(2):
        _ping(caged, 200)
        _ping(bare, 200)
    for _ in range(10):
        ours += _ping(caged, ROUND_TRIPS // 10)
        peer += _ping(bare, ROUND_TRIPS // 10)
    for process in (caged, bare):
        process.close()
        await process.wait()
    mine, theirs = statistics.median(ours), statistics.median(peer)
    return {
        "work": "JSON-RPC call over stdio inside a cage, pinned",
        "ours": round(mine * 1e6, 2),
        "unit": "µs",
        "against": "the same program outside",
        "peer": round(theirs * 1e6, 2),
        "ratio": round(mine / theirs, 3),
        "target": f"<= {ROUND_TRIP_TARGET}x",
        "verdict": "ok" if mine / theirs <= ROUND_TRIP_TARGET else "missed",
    }


def _ping(process: CageProcess, times: int) -> list[float]:
    stdin, stdout = process.stdin_fd, process.stdout_fd
    assert stdin is not None
    assert stdout is not None
    found: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        os.write(stdin, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        os.read(stdout, 200)
        found.append(time.perf_counter() - started)
    return found


async def _crowd(spawner: Spawner) -> list[dict[str, Any]]:
    """Start many cages, then stop them; the bare peer starts and stops as many shells."""
    command = ("sh", "-c", "echo up; read x")
    caged = CageRequest("bench", CagePolicy(limits=LIMITS), command)
    bare = UncagedRequest("bench", Uncaged("a benchmark's peer"), ("/bin/sh", *command[1:]))
    ours, ours_stop = await _start_and_stop(spawner, caged)
    peer, peer_stop = await _start_and_stop(spawner, bare)
    left = len(spawner.running)
    return [
        {
            "work": f"{CROWD} cages started, each at its first byte",
            "ours": round(ours * 1000 / CROWD, 2),
            "unit": "ms each",
            "against": "bare shells",
            "peer": round(peer * 1000 / CROWD, 2),
            "ratio": round(ours / peer, 2),
            "target": f"<= +{ADDED_TARGET_MS:g} ms each",
            "verdict": "ok" if (ours - peer) * 1000 / CROWD <= ADDED_TARGET_MS else "missed",
        },
        {
            "work": f"{CROWD} cages stopped at once, nothing left",
            "ours": round(ours_stop * 1000 / CROWD, 2),
            "unit": "ms each",
            "against": "bare shells",
            "peer": round(peer_stop * 1000 / CROWD, 2),
            "ratio": round(ours_stop / peer_stop, 2),
            "target": "0 left over",
            "verdict": "ok" if left == 0 else "missed",
        },
    ]


async def _start_and_stop(
    spawner: Spawner, request: CageRequest | UncagedRequest
) -> tuple[float, float]:
    limit = asyncio.Semaphore(CROWD_AT_ONCE)

    async def start() -> CageProcess:
        async with limit:
            process = await spawner.spawn(request)
            await _readable_byte(process)
            return process

    began = time.perf_counter()
    crowd = await asyncio.gather(*(start() for _ in range(CROWD)))
    started = time.perf_counter()
    for process in crowd:
        process.close()
    await asyncio.gather(*(process.wait() for process in crowd))
    return started - began, time.perf_counter() - started


async def _leaks(spawner: Spawner) -> dict[str, Any]:
    request = CageRequest("bench", CagePolicy(limits=LIMITS), ("true",))
    limit = asyncio.Semaphore(CROWD_AT_ONCE)

    async def one() -> None:
        async with limit, await spawner.spawn(request) as process:
            await process.wait()

    await one()
    before = _open_descriptors()
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(SPAWNS)))
    took = time.perf_counter() - began
    left = _open_descriptors() - before
    bare = _bare_spawns()
    return {
        "work": f"{SPAWNS} cages of `true` in a row: descriptors left over",
        "ours": left,
        "unit": "descriptors",
        "against": "none",
        "peer": 0,
        "ratio": round(took / bare, 1),
        "target": "0",
        "verdict": "ok" if left == 0 else "missed",
    }


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _bare_spawns() -> float:
    began = time.perf_counter()
    for _ in range(SPAWNS):
        subprocess.run(["/bin/true"], check=True, env={})
    return time.perf_counter() - began


def _main() -> None:
    rows: list[JsonObject] = run()
    for row in rows:
        print(row)
    if any(row["verdict"] != "ok" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    _main()
