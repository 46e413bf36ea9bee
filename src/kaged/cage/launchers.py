"""`Launchers`: a few processes in stock that become bwrap as soon as they are told to.

A start from scratch goes through three programs: a shell that enters the cage's groups, one that
becomes its user, and bwrap. That is a quarter of the time a cage takes. A launcher has all of that
behind it but the last step. Each is a child of the daemon, serves one cage and no other, and ends
with the daemon; without one in stock a cage starts from scratch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.cage import launcher_main
from kaged.cage.identity import Identity

STOCK = 4
# One start alone is not worth a helper process: `kaged cage shell`, a test, a trial run.
STARTS_BEFORE_STOCKING = 2
_CLOSE_S = 2.0
_MESSAGE_BYTES = 64
_RLIMITS = tuple(
    sorted(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))
)
_SCRIPT = str(Path(launcher_main.__file__).resolve())


@dataclass(frozen=True, slots=True)
class Order:
    """What a launcher does: enter `groups`, become `identity`'s user, become `argv`.

    `descriptors` are standard input, output and error, and then those that bwrap finds under the
    numbers from `launcher_main.FIRST_DESCRIPTOR` on.
    """

    argv: Sequence[str]
    groups: Sequence[str]
    identity: Identity
    descriptors: Sequence[int]

    @property
    def fits(self) -> bool:
        """Whether a launcher takes this many descriptors."""
        return len(self.descriptors) <= launcher_main.MAX_DESCRIPTORS

    def encoded(self) -> bytes:
        """Write it the way a launcher reads it; no word holds a NUL, `check_command` saw to it."""
        identity = self.identity
        become = [identity.uid, identity.gid] if identity.switches else None
        head = json.dumps({"groups": list(self.groups), "become": become}).encode()
        return head + b"\n" + b"\0".join(os.fsencode(word) for word in self.argv)


class Launchers:
    """Keeps launchers in stock, by way of a small helper process that forks them."""

    def __init__(self, interpreter: str = sys.executable) -> None:
        self._interpreter = interpreter
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stock: deque[tuple[int, socket.socket]] = deque()
        self._requested = 0
        self._inherited: tuple[object, ...] = ()
        self._starts = 0
        self._useless = False  # the helper cannot do its work on this host

    @property
    def in_stock(self) -> int:
        """How many launchers wait for an order."""
        return len(self._stock)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the helper and of the launchers that wait."""
        helper = () if self._process is None else (self._process.pid,)
        return (*helper, *(pid for pid, _ in self._stock))

    def start(self, order: Order) -> int | None:
        """Send the order to a launcher; returns its process id, or None when there is none."""
        message = order.encoded()
        if not order.fits or len(message) > launcher_main.MAX_ORDER_BYTES:
            return None
        if self._stock and self._inherited != _inheritable():
            self.close()  # they would hand down what the daemon no longer is
        while self._stock:
            pid, channel = self._stock.popleft()
            with channel:
                try:
                    socket.send_fds(channel, [message], list(order.descriptors))
                except OSError:  # it was killed while it waited
                    _end(pid)
                else:
                    return pid
        return None

    def restock(self) -> None:
        """Order new launchers when the last one was used. Does not wait for them."""
        self._starts += 1
        if self._starts < STARTS_BEFORE_STOCKING or self._useless or self._stock:
            return
        if self._loop is not asyncio.get_running_loop():
            self.close()
        if self._requested:
            return
        try:
            if self._requests is None:
                self._start_helper()
            if self._requests is not None:
                self._requests.send(str(STOCK).encode())
                self._requested = STOCK
        except OSError:
            self._give_up()

    def close(self) -> None:
        """End the helper and every launcher that waits. Safe to call twice."""
        requests, process = self._requests, self._process
        self._requests = self._process = None
        self._requested = 0
        if requests is not None and process is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(requests)
            self._take_the_last(requests, process)
            requests.close()
        while self._stock:
            pid, channel = self._stock.popleft()
            channel.close()
            _end(pid)

    def _start_helper(self) -> None:
        loop = asyncio.get_running_loop()
        self._inherited = _inheritable()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file, our own interpreter
                [self._interpreter, "-I", "-S", _SCRIPT],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        loop.add_reader(ours, self._made, ours)
        self._loop, self._requests = loop, ours

    def _made(self, requests: socket.socket) -> None:
        """Put a new launcher into stock."""
        try:
            found = _receive(requests)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            found = None
        if found is None:  # the helper ended, and was not asked to
            self._give_up()
            return
        self._requested -= 1
        self._keep(*found)

    def _keep(self, pid: int, channel: socket.socket | None) -> None:
        if channel is None:  # no descriptor was left for its socket
            _end(pid)
        else:
            self._stock.append((pid, channel))

    def _give_up(self) -> None:
        self._useless = True
        self.close()

    def _take_the_last(self, requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
        # Hanging up ends the helper, after it has told of every launcher that it still made; one
        # nobody knows of would stay behind as a zombie.
        with contextlib.suppress(OSError):
            requests.shutdown(socket.SHUT_WR)
            requests.settimeout(_CLOSE_S)
            while found := _receive(requests):
                self._keep(*found)
        process.kill()
        process.wait()


def _inheritable() -> tuple[object, ...]:
    """Return what a process has from its parent and what the daemon may change meanwhile."""
    return (
        os.sched_getaffinity(0),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        tuple(resource.getrlimit(one) for one in _RLIMITS),
    )


def _receive(requests: socket.socket) -> tuple[int, socket.socket | None] | None:
    message, fds, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return None
    return int(message), socket.socket(fileno=fds[0]) if fds else None


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # our own child, not reaped yet: the number is its own
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
