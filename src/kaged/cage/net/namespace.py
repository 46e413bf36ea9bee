"""`NamespaceHelper`: gets sockets that live in a cage's network namespace.

The one module of the gate that starts processes: a small single-threaded fork server (`nsworker`)
with an empty environment, which ends when its control socket does, and trial cages for probes.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.net.limits import LISTEN_BACKLOG
from kaged.cage.net.netlink import NetlinkBatch

_ANSWER_BYTES = 4096
_FDS_PER_MESSAGE = 253
_ANSWER_S = 15.0
_EXIT_S = 2.0
# More than there are workers; few enough that the control socket's buffer never fills.
_AT_ONCE = 8


class NamespaceUnavailable(KagedError):
    """The gate cannot reach into a cage's network namespace; no network can be granted."""

    code = "net_namespace_unavailable"


@dataclass(frozen=True, slots=True)
class SocketSpec:
    """One socket to open inside: `tcp` listens, `udp` is bound."""

    kind: str
    address: str
    port: int
    transparent: bool = False


class NamespaceHelper:
    """Opens sockets in other network namespaces, by way of a process of its own.

    Starts that process when it is first needed, and again if it has died. Safe to use from many
    tasks at once.
    """

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @property
    def pid(self) -> int | None:
        """The process id of the helper, or None while there is none."""
        return self._process.pid if self._process else None

    async def open(
        self,
        net_fd: int,
        sockets: Sequence[SocketSpec],
        netlink: Sequence[NetlinkBatch] = (),
        dial: Sequence[tuple[str, int]] = (),
    ) -> list[socket.socket]:
        """Send `netlink` to the kernel and open `sockets` in the namespace behind `net_fd`.

        `dial` connects from the inside to the given places, for trial runs. All or nothing: the
        sockets come back non-blocking and in the order asked for, those dialled last.

        Raises:
            NamespaceUnavailable: a step failed; `data` names the step and the system's error.
        """
        request = _encoded(tuple(sockets), tuple(netlink), tuple(dial))
        async with self._turns:
            opened = await self._ask(request, net_fd)
        if len(opened) != len(sockets) + len(dial):
            _close_all(opened)
            raise _failure("answer", errno.EPROTO)
        return opened

    def start(self) -> None:
        """Start the helper now, so that the first cage does not wait for it."""
        if self._process is not None and self._process.poll() is None:
            return
        self._forget()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        script = Path(__file__).with_name("nsworker.py")
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                    [self._python, "-I", "-S", str(script), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise _failure("start", error.errno or 0) from error
        self._control = ours

    async def close(self) -> None:
        """End the helper and wait for it. Safe to call twice."""
        process = self._process
        self._forget()
        if process is None:
            return
        try:
            async with asyncio.timeout(_EXIT_S):
                await _ended(process.pid)
        except TimeoutError:
            process.kill()
        process.wait()

    async def _ask(self, request: bytes, net_fd: int) -> list[socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            with theirs:
                self._send(request, [theirs.fileno(), net_fd])
            return await self._answer(ours)

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.poll()
        self._control = None
        self._process = None

    def _send(self, request: bytes, fds: list[int]) -> None:
        for attempt in (1, 2):
            self.start()
            assert self._control is not None
            try:
                socket.send_fds(self._control, [request], fds)
            except BrokenPipeError as error:
                # The helper died since the last request; its exit may not be visible yet.
                if self._process is not None:
                    self._process.kill()
                    self._process.wait()
                if attempt == 2:
                    raise _failure("start", error.errno or 0) from error
            except BlockingIOError as error:
                raise _failure("queue", error.errno or 0) from error
            else:
                return

    async def _answer(self, ours: socket.socket) -> list[socket.socket]:
        opened = list[socket.socket]()
        try:
            async with asyncio.timeout(_ANSWER_S):
                while True:
                    data, fds = await _receive(ours)
                    opened += [socket.socket(fileno=fd) for fd in fds]
                    if data != b"+":
                        break
            _check(data)
        except TimeoutError as error:
            _close_all(opened)
            raise _failure("answer", errno.ETIMEDOUT) from error
        except BaseException:
            _close_all(opened)
            raise
        for sock in opened:
            sock.setblocking(False)
        return opened


class TrialCage:
    """A cage that waits at its start for as long as the block lasts and never runs anything.

    Entering gives the process id whose network namespace is the cage's.
    """

    def __init__(self, bwrap: str) -> None:
        self._bwrap = bwrap
        self._process: subprocess.Popen[bytes] | None = None
        self._block = -1
        self._child = -1

    async def __aenter__(self) -> int:
        info, info_inside = os.pipe()
        block_inside, self._block = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - fixed arguments; must be this thread
                [
                    self._bwrap,
                    *("--unshare-user", "--unshare-net", "--die-with-parent", "--cap-drop", "ALL"),
                    *("--info-fd", str(info_inside), "--block-fd", str(block_inside)),
                    *("--ro-bind", "/", "/", "--", "/bin/false"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=[info_inside, block_inside],
            )
            os.close(info_inside)
            info_inside = -1
            async with asyncio.timeout(_EXIT_S):
                self._child = await _child_pid(info)
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError):
                raise _failure("trial", errno.ETIMEDOUT) from error
            raise
        finally:
            for fd in (info, info_inside, block_inside):
                if fd >= 0:
                    os.close(fd)
        return self._child

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        # The waiting process first: it outlives the sandbox tool that started it, and to it a
        # closed pipe means "go". Its number is safe while that tool is alive to reap it.
        if self._process is not None:
            if self._child > 0 and self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(self._child, signal.SIGKILL)
            self._process.kill()
            await _ended(self._process.pid)
            self._process.wait()
        os.close(self._block)


@functools.lru_cache(maxsize=128)  # cages with the same grants start again and again
def _encoded(
    sockets: tuple[SocketSpec, ...],
    netlink: tuple[NetlinkBatch, ...],
    dial: tuple[tuple[str, int], ...],
) -> bytes:
    """Write a request the way the helper reads it."""
    return json.dumps(
        {
            "netlink": [(one.step, one.protocol, one.payload.hex(), one.acks) for one in netlink],
            "sockets": [
                (one.kind, one.address, one.port, one.transparent, LISTEN_BACKLOG)
                for one in sockets
            ],
            "dial": dial,
        }
    ).encode()


async def _child_pid(info: int) -> int:
    text = b""
    while True:
        await _readable(info)
        chunk = os.read(info, _ANSWER_BYTES)
        if not chunk:
            raise _failure("trial", errno.ECHILD)
        text += chunk
        try:
            return int(json.loads(text)["child-pid"])
        except ValueError:
            continue  # it arrives in several writes


async def _receive(ours: socket.socket) -> tuple[bytes, list[int]]:
    await _readable(ours.fileno())
    data, fds, _, _ = socket.recv_fds(ours, _ANSWER_BYTES, _FDS_PER_MESSAGE)
    return data, fds


def _check(data: bytes) -> None:
    if not data:
        raise _failure("answer", errno.EPIPE)
    report: dict[str, Any] = json.loads(data)  # our own helper's words
    if not report["ok"]:
        raise _failure(str(report["step"]), int(report["errno"]))


async def _ended(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await _readable(pidfd)
    finally:
        os.close(pidfd)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        with suppress(OSError):
            sock.close()


def _failure(step: str, number: int) -> NamespaceUnavailable:
    return NamespaceUnavailable(
        f"the cage's network could not be prepared: {step}: {os.strerror(number)}",
        fix="run `kaged doctor` and look at the network rows",
        step=step,
        errno=number,
    )
