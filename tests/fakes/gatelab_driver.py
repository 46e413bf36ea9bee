"""Runs one gate lab case; started by fakes.gatelab with the identity to take on."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from kaged.base import SystemClock
from kaged.cage.net import GateLimits, LoopbackService, NamespaceHelper, NetEvent, NetFacts, NetGate
from kaged.cage.net.netlink import catch_all_route
from kaged.kernel.net import parse_target

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_DUMPABLE = 4
_SIOCSIFFLAGS = 0x8914
_NOBODY = 65534
_INSIDE = Path(__file__).with_name("gatelab_inside.py").read_text(encoding="utf-8")


def build_internet() -> None:
    """Move to a network where every address is here."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNET if uid == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", 0x49))
    for ipv6 in (False, True):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.send(catch_all_route(ipv6=ipv6).payload)
            (code,) = struct.unpack_from("=i", sock.recv(4096), 16)
            if code:
                raise OSError(-code, os.strerror(-code))
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0", encoding="ascii")
    Path("/proc/sys/net/ipv6/ip_nonlocal_bind").write_text("1", encoding="ascii")


def become(who: str) -> None:
    """Drop every privilege, if the case asks for a plain user."""
    libc = ctypes.CDLL(None, use_errno=True)
    if who == "user" and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    elif who == "user":
        # Powers over our own new network; a plain user's daemon has none.
        header, data = struct.pack("=Ii", 0x20080522, 0), bytes(24)
        if libc.capset(header, data):
            raise OSError(ctypes.get_errno(), "capset")


class Notice(asyncio.DatagramProtocol):
    """A UDP server that takes note of a packet and does not answer."""

    def __init__(self, visits: list[str], visit: str) -> None:
        self._visits = visits
        self._visit = visit

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._visits.append(self._visit)


class Servers:
    """The servers of a case; remembers who came."""

    def __init__(self, amount: int) -> None:
        self.visits: list[str] = []
        self._amount = amount
        self._running: list[asyncio.Server] = []
        self._endpoints: list[asyncio.DatagramTransport] = []
        self._talking: set[asyncio.Task[Any]] = set()

    async def start(self, address: str, port: int, kind: str) -> None:
        if kind == "udp":
            loop = asyncio.get_running_loop()
            visit = f"{address} {port} udp"
            here = (address, port)
            endpoint, _ = await loop.create_datagram_endpoint(
                lambda: Notice(self.visits, visit), here
            )
            self._endpoints.append(endpoint)
            return

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.visits.append(f"{address} {port}")
            task = asyncio.current_task()
            assert task is not None
            self._talking.add(task)
            try:
                await self._talk(f"{address} {port}", kind, reader, writer)
                writer.close()
                await writer.wait_closed()
            except ConnectionError:
                pass
            finally:
                writer.transport.abort()
                self._talking.discard(task)

        self._running.append(await asyncio.start_server(handle, address, port))

    async def _talk(
        self, name: str, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if kind == "name":
            writer.write(name.encode())
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        elif kind == "sink":
            count = 0
            while data := await reader.read(1 << 20):
                count += len(data)
            writer.write(f"got {count}".encode())
            await writer.drain()
        elif kind == "flood":
            block = bytes(range(256)) * 256
            left = self._amount
            while left > 0:
                writer.write(block[: min(left, len(block))])
                left -= len(block)
                await writer.drain()
        elif kind == "silent":
            await reader.read(-1)
        else:
            raise ValueError(kind)

    async def close(self) -> None:
        for server in self._running:
            server.close()
        for endpoint in self._endpoints:
            endpoint.close()
        talking = tuple(self._talking)
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        await asyncio.sleep(0)  # transports close their sockets in the next round


class TableResolver:
    """Answers from the case's table and remembers what it was asked."""

    def __init__(self, table: dict[str, list[str]]) -> None:
        self._table = table
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        found = self._table.get(host)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        if found == ["hang"]:
            await asyncio.Event().wait()
        if "|" not in found:
            return found
        # Each question gets the next part; the last one stays.
        end = found.index("|")
        self._table[host] = found[end + 1 :]
        return found[:end]


class Cage:
    """A bwrap cage with nothing but a network namespace worth the name."""

    def __init__(
        self, files: tuple[tuple[str, str], ...], env: tuple[tuple[str, str], ...]
    ) -> None:
        self._child = -1
        self._info, info_inside = os.pipe()
        block_inside, self._block = os.pipe()
        handed = [info_inside, block_inside]
        argv = ["bwrap", "--unshare-user", "--unshare-net", "--unshare-pid", "--cap-drop", "ALL"]
        argv += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--die-with-parent"]
        for path, text in files:
            fd = os.memfd_create("file", 0)
            os.write(fd, text.encode())
            os.lseek(fd, 0, os.SEEK_SET)
            handed.append(fd)
            argv += ["--ro-bind-data", str(fd), path]
        argv += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
        for key, value in env:
            argv += ["--setenv", key, value]
        argv += ["--info-fd", str(info_inside), "--block-fd", str(block_inside)]
        argv += ["--chdir", "/", "--", sys.argv[2], "-I", "-S", "-"]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=handed,
            env={},
        )
        for fd in handed:
            os.close(fd)

    def child_pid(self) -> int:
        text = b""
        while True:
            chunk = os.read(self._info, 4096)
            if not chunk:
                raise RuntimeError(self.process.communicate()[1].decode())
            text += chunk
            with suppress(ValueError):
                self._child = int(json.loads(text)["child-pid"])
                return self._child

    async def run(self, code: str) -> tuple[dict[str, Any], str]:
        os.write(self._block, b"x")
        loop = asyncio.get_running_loop()
        program = f"{_INSIDE}\n{code}\ndone()\n".encode()
        out, err = await loop.run_in_executor(None, self.process.communicate, program)
        if self.process.returncode:
            raise RuntimeError(f"the program inside failed:\n{err.decode()}")
        return json.loads(out), err.decode()

    def close(self) -> None:
        # The waiting child outlives bwrap, so it goes first.
        if self.process.poll() is None and self._child > 0:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        self.process.kill()
        with suppress(ValueError):  # the pipes of a cage that ran are closed already
            self.process.communicate()
        os.close(self._info)
        os.close(self._block)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve as the daemon's own service on a cage's loopback."""
    writer.write(b"service " + await reader.readline())
    await writer.drain()


def open_files() -> int:
    """Count the descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def run(case: dict[str, Any]) -> dict[str, Any]:
    """Run a case."""
    # The first server of a uvloop makes it keep one descriptor in reserve, for good.
    (await asyncio.start_server(greet, "127.0.0.1", 0)).close()
    await asyncio.sleep(0)
    fds_before = open_files()
    servers = Servers(case["amount"])
    for address, port, kind in case["servers"]:
        await servers.start(address, port, kind)
    resolver = TableResolver(case["hosts"])
    events = list[NetEvent]()
    gate = NetGate(
        events.append,
        resolver=resolver,
        clock=SystemClock(),
        limits=GateLimits(**case["limits"]),
        helper=NamespaceHelper(sys.argv[2]),
    )
    await gate.start()
    if case["facts"]:
        gate.facts = NetFacts(**case["facts"])
    plan = gate.prepare(tuple(parse_target(text) for text in case["grants"]))
    services = [LoopbackService(case["service_port"], greet)] if case["service_port"] else []
    neighbour_plan = gate.prepare(tuple(parse_target(text) for text in case["neighbours"]))
    neighbour = Cage(neighbour_plan.files, neighbour_plan.environment)
    cage = Cage(plan.files, plan.environment)
    try:
        await gate.attach(neighbour.child_pid(), neighbour_plan, cage="other", cage_id="other")
        session = await gate.attach(
            cage.child_pid(),
            plan,
            cage="plugin:lab",
            cage_id="lab",
            services=services,
            parent_pid=cage.process.pid,
        )
        if case["late_service_port"]:
            await session.add_listener(case["late_service_port"], greet)
        said, stderr = await cage.run(case["code"])
        await session.close()
    finally:
        cage.close()
        neighbour.close()
    open_connections = session.connections
    await gate.close()
    await servers.close()
    del cage, neighbour
    leaked = open_files() - fds_before
    return {
        "said": said,
        "events": [{"name": event.name, **event.data()} for event in events],
        "resolved": resolver.asked,
        "visits": servers.visits,
        "leaked_fds": leaked,
        "open_connections": open_connections,
        "stderr": stderr,
    }


def main() -> None:
    """Run the case that stands on standard input."""
    case = json.load(sys.stdin)
    "x".encode("idna")  # loads the codec while the library is still within reach
    new_loop = asyncio.new_event_loop
    if case["uvloop"]:
        import uvloop

        new_loop = uvloop.new_event_loop
    build_internet()
    become(sys.argv[1])
    with asyncio.Runner(loop_factory=new_loop) as runner:
        result = runner.run(run(case))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
