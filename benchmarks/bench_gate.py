"""The network gate against plain loopback: what a new connection costs, how much goes through.

One server outside, one client program. The client runs once beside the server and once in a cage
that reaches it by a granted name through the gate, everything else being equal.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import uvloop

from kaged.cage.net import NetEvent, NetGate
from kaged.cage.net.namespace import TrialCage
from kaged.kernel.net import parse_target
from scoreboard import Row, Target, at_least, at_most, peer_program, row, show

CONNECTIONS = 400
BULK_BYTES = 512 * 1024 * 1024
NAME = "bench.test"
MAX_ADDED_MS = 1.0
MIN_MB_PER_S = 300.0
MIN_RATIO = 0.4
MAX_ATTACH_RATIO = 0.5

SERVER = f"""
import socket, sys, threading
block = bytes(262144)
def talk(sock):
    with sock:
        word = sock.recv(1)
        if word == b"P":
            sock.sendall(b"x")
        elif word == b"D":
            left = {BULK_BYTES}
            while left > 0:
                left -= sock.send(block[:min(left, len(block))])
        elif word == b"U":
            buffer = bytearray(262144)
            while sock.recv_into(buffer):
                pass
            sock.sendall(b"x")
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listener.getsockname()[1], flush=True)
while True:
    sock, _ = listener.accept()
    threading.Thread(target=talk, args=(sock,), daemon=True).start()
"""

CLIENT = f"""
import json, socket, sys, time
host, port = sys.argv[1], int(sys.argv[2])
times = []
for _ in range({CONNECTIONS}):
    begin = time.perf_counter()
    with socket.create_connection((host, port)) as sock:
        sock.sendall(b"P")
        assert sock.recv(1) == b"x"
    times.append(time.perf_counter() - begin)
def bulk_down():
    with socket.create_connection((host, port)) as sock:
        sock.sendall(b"D")
        buffer, left = bytearray(262144), {BULK_BYTES}
        begin = time.perf_counter()
        while left > 0:
            count = sock.recv_into(buffer)
            assert count
            left -= count
        return {BULK_BYTES} / (time.perf_counter() - begin) / 1e6
def bulk_up():
    block, left = bytes(262144), {BULK_BYTES}
    with socket.create_connection((host, port)) as sock:
        begin = time.perf_counter()
        sock.sendall(b"U")
        while left > 0:
            left -= sock.send(block[:min(left, len(block))])
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b"x"
        return {BULK_BYTES} / (time.perf_counter() - begin) / 1e6
times.sort()
middle = times[len(times) // 2] * 1000
print(json.dumps({{"connect_ms": middle, "down": bulk_down(), "up": bulk_up()}}))
"""


class _Resolver:
    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]


def run() -> list[Row]:
    """Measure; returns one row per figure."""
    bwrap = peer_program("bwrap", "bwrap")
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            direct = json.loads(_client([], "127.0.0.1", port).communicate()[0])
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                gated, attach_ms = runner.run(_through_gate(bwrap, port))
        finally:
            server.kill()
    bwrap_ms = statistics.median(_bwrap_once(bwrap) for _ in range(15))
    added = gated["connect_ms"] - direct["connect_ms"]
    return [
        row(
            "new connection through the gate, added time",
            gated["connect_ms"],
            "ms",
            against="plain loopback connection",
            peer=direct["connect_ms"],
            target=at_most(MAX_ADDED_MS, added, "ms added"),
        ),
        *(
            row(
                f"bulk through the gate, {way}",
                gated[key],
                "MB/s",
                against="plain loopback connection",
                peer=direct[key],
                target=_enough(gated[key], direct[key]),
            )
            for key, way in (("down", "into the cage"), ("up", "out of the cage"))
        ),
        row(
            "opening the gate of a waiting cage",
            statistics.median(attach_ms),
            "ms",
            against="bwrap running true in a namespace of the same kind",
            peer=bwrap_ms,
            target=at_most(MAX_ATTACH_RATIO, statistics.median(attach_ms) / bwrap_ms, "x"),
            samples=attach_ms,
        ),
    ]


def _enough(ours: float, plain: float) -> Target:
    # Where plain loopback itself is slow, the figure says something of the machine, not of us.
    if plain < MIN_MB_PER_S / MIN_RATIO:
        return at_least(MIN_RATIO, ours / plain, "x of plain (a slow machine)")
    return at_least(MIN_MB_PER_S, ours, "MB/s")


def _client(
    prefix: list[str], host: str, port: int, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    argv = [*prefix, sys.executable, "-I", "-S", "-c", CLIENT, host, str(port)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=pass_fds)


async def _through_gate(bwrap: str, port: int) -> tuple[dict[str, float], list[float]]:
    events = list[NetEvent]()
    gate = NetGate(events.append, resolver=_Resolver())
    await gate.start(bwrap)
    # The name is what a program asks for; its address is special, so it must be granted as well.
    plan = gate.prepare((parse_target(f"{NAME}:{port}"), parse_target(f"127.0.0.1:{port}")))
    attach_times = [await _attach_once(bwrap, gate, port) for _ in range(15)]
    hosts = os.memfd_create("hosts", 0)
    os.write(hosts, dict(plan.files)["/etc/hosts"].encode())
    os.lseek(hosts, 0, os.SEEK_SET)
    info, info_inside = os.pipe()
    block_inside, block = os.pipe()
    prefix = [bwrap, "--unshare-user", "--unshare-net", "--unshare-pid", "--ro-bind", "/", "/"]
    prefix += ["--dev", "/dev", "--ro-bind-data", str(hosts), "/etc/hosts", "--die-with-parent"]
    prefix += ["--info-fd", str(info_inside), "--block-fd", str(block_inside), "--"]
    client = _client(prefix, NAME, port, pass_fds=[hosts, info_inside, block_inside])
    for fd in (hosts, info_inside, block_inside):
        os.close(fd)
    session = await gate.attach(_child_pid(info), plan, cage="bench", cage_id="bench")
    os.write(block, b"x")
    loop = asyncio.get_running_loop()
    out, _ = await loop.run_in_executor(None, client.communicate)
    await session.close()
    await gate.close()
    os.close(block)
    return json.loads(out), attach_times


def _bwrap_once(bwrap: str) -> float:
    begin = time.perf_counter()
    argv = [bwrap, "--unshare-user", "--unshare-net", "--ro-bind", "/", "/", "--", "/bin/true"]
    subprocess.run(argv, check=True)
    return (time.perf_counter() - begin) * 1000


async def _attach_once(bwrap: str, gate: NetGate, port: int) -> float:
    plan = gate.prepare((parse_target(f"{NAME}:{port}"),))
    async with TrialCage(bwrap) as child_pid:
        await asyncio.sleep(0.02)  # bwrap has come to its pipe: its own work is not measured
        begin = time.perf_counter()  # uvloop's own clock ticks in milliseconds
        session = await gate.attach(child_pid, plan, cage="bench", cage_id="bench")
        took = time.perf_counter() - begin
        await session.close()
    return took * 1000


def _child_pid(info: int) -> int:
    text = b""
    while True:
        text += os.read(info, 4096)
        try:
            return int(json.loads(text)["child-pid"])
        except ValueError:
            continue


if __name__ == "__main__":
    show(run())
