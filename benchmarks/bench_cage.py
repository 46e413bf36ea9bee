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
import tempfile
import time
from pathlib import Path

from kaged.cage import CageProcess, CageRequest, CageSettings, Spawner, Uncaged, UncagedRequest
from kaged.cage.net import NetGate
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
from scoreboard import Row, at_most, row, show

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


def run() -> list[Row]:
    """Measure; return one row per promise."""
    return asyncio.run(_run())


async def _run() -> list[Row]:
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
) -> Row:
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
    return row(
        f"time to first byte over bare: {what}",
        statistics.median(ours) * 1000,
        "ms",
        against="the same program started bare",
        peer=statistics.median(peer) * 1000,
        target=at_most(ADDED_TARGET_MS, added * 1000, "ms added"),
        samples=ours,
    )


async def _against_plain_bwrap(spawner: Spawner) -> Row:
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
    return row(
        "time to first byte of sh: full cage (limits, filter, strict programs)",
        statistics.median(ours) * 1000,
        "ms",
        against="bwrap by hand with the same namespaces",
        peer=statistics.median(peer) * 1000,
        target=at_most(FLOOR_TARGET, ratio, "x"),
        samples=ours,
    )


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


async def _round_trip(spawner: Spawner) -> Row:
    """Ping-pong over the pipes, blocking, in turns: the cage adds nothing to a byte on its way.

    Everyone sits on one processor: waking another, idle one costs more than the message.
    """
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        return await _round_trip_pinned(spawner)
    finally:
        os.sched_setaffinity(0, processors)


async def _round_trip_pinned(spawner: Spawner) -> Row:
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
    return row(
        "JSON-RPC call over stdio inside a cage, pinned",
        mine * 1e6,
        "µs",
        against="the same program outside",
        peer=theirs * 1e6,
        target=at_most(ROUND_TRIP_TARGET, mine / theirs, "x"),
        samples=ours,
    )


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


async def _crowd(spawner: Spawner) -> list[Row]:
    """Start many cages, then stop them; the bare peer starts and stops as many shells."""
    command = ("sh", "-c", "echo up; read x")
    caged = CageRequest("bench", CagePolicy(limits=LIMITS), command)
    bare = UncagedRequest("bench", Uncaged("a benchmark's peer"), ("/bin/sh", *command[1:]))
    ours, ours_stop = await _start_and_stop(spawner, caged)
    peer, peer_stop = await _start_and_stop(spawner, bare)
    left = len(spawner.running)
    return [
        row(
            f"{CROWD} cages started, each at its first byte",
            ours * 1000 / CROWD,
            "ms each",
            against="bare shells",
            peer=peer * 1000 / CROWD,
            target=at_most(ADDED_TARGET_MS, (ours - peer) * 1000 / CROWD, "ms added each"),
        ),
        row(
            f"{CROWD} cages stopped at once, nothing left",
            ours_stop * 1000 / CROWD,
            "ms each",
            against="bare shells",
            peer=peer_stop * 1000 / CROWD,
            target=at_most(0, left, "left over"),
        ),
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


async def _leaks(spawner: Spawner) -> Row:
    request = CageRequest("bench", CagePolicy(limits=LIMITS), ("true",))
    limit = asyncio.Semaphore(CROWD_AT_ONCE)

    async def one() -> None:
        async with limit, await spawner.spawn(request) as process:
            await process.wait()

    await one()
    spawner.launchers.close()  # what is in stock for the next cage is left over by none
    before = _open_descriptors()
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(SPAWNS)))
    took = time.perf_counter() - began
    spawner.launchers.close()
    left = _open_descriptors() - before
    each, bare = took / SPAWNS * 1000, _bare_spawns() / SPAWNS * 1000
    return row(
        f"{SPAWNS} cages of `true`, and no descriptor left over",
        each,
        "ms each",
        against="bare spawns, one after the other",
        peer=bare,
        target=at_most(0, left, "left over"),
    )


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _bare_spawns() -> float:
    began = time.perf_counter()
    for _ in range(SPAWNS):
        subprocess.run(["/bin/true"], check=True, env={})
    return time.perf_counter() - began


if __name__ == "__main__":
    show(run())
