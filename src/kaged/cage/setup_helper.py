"""`SetupHelper`: a small helper process that prepares a waiting cage where the daemon cannot.

The ceilings of a user namespace are set from inside it: without them one cage could use up all
inotify instances of the uid it shares with the daemon. The limits of a process of another uid are
set under that uid. And moving a process between cgroups waits for every processor of the machine,
which the event loop should not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import setup_helper_main
from kaged.cage.errors import CageStartFailed, CageUnavailable
from kaged.cage.orphan_processes import daemon_mark
from kaged.cage.protected.copies import CoverLink
from kaged.cage.waiting import writable

ANSWER_TIMEOUT_S = 10.0
INOTIFY_INSTANCES = 8
INOTIFY_WATCHES = 8192
_SCRIPT = str(Path(setup_helper_main.__file__).resolve())


@dataclass(frozen=True, slots=True)
class SetupTask:
    """What is to be done for the waiting cage `pid`.

    Groups to join, limits and ceilings to set, links to mount over git's configuration. From then
    on, until `SetupHelper.forget`, the cage is killed should the daemon die.
    """

    number: int
    pid: int
    uid: int
    gid: int
    groups: tuple[str, ...]
    rlimits: tuple[tuple[int, int], ...]
    ceilings: tuple[tuple[str, int], ...]
    links: tuple[CoverLink, ...] = ()


@dataclass(frozen=True, slots=True)
class SetupDone:
    """What the host did not forbid: the ceilings, and the links over git's configuration."""

    ceilings: bool
    covered: bool


class SetupHelper:
    """Runs setup tasks in a helper process, started when first needed and again if it dies."""

    def __init__(self, interpreter: str = sys.executable) -> None:
        self._interpreter = interpreter
        self._process: subprocess.Popen[bytes] | None = None
        self._register: socket.socket | None = None
        self._setup_tasks: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[SetupDone]] = {}
        self._sending = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process id of the helper, or None while there is none."""
        return self._process.pid if self._process is not None else None

    async def run(self, setup_task: SetupTask) -> SetupDone:
        """Run one setup task; return what of it could be done that need not be.

        Raises:
            CageUnavailable: limits could not be set; the cage must not be released.
            CageStartFailed: bwrap has ended, or the helper is gone or silent; the same holds.
        """
        register, setup_tasks = self.start()
        waiter: asyncio.Future[SetupDone] = asyncio.get_running_loop().create_future()
        self._waiting[setup_task.number] = waiter
        body: JsonObject = {
            "number": setup_task.number,
            "pid": setup_task.pid,
            "uid": setup_task.uid,
            "gid": setup_task.gid,
            "groups": list(setup_task.groups),
            "rlimits": [[what, value] for what, value in setup_task.rlimits],
            "ceilings": dict(setup_task.ceilings),
            "links": [
                [one.folder, *one.folder_id, one.name, one.target] for one in setup_task.links
            ],
        }
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._send(register, {"number": setup_task.number, "pid": setup_task.pid})
                await self._send(setup_tasks, body)
                return await waiter
        except TimeoutError as error:
            raise CageStartFailed("the setup helper did not answer in time") from error
        except OSError as error:
            self.close()
            raise CageStartFailed(f"the setup helper could not be reached: {error}") from error
        finally:
            self._waiting.pop(setup_task.number, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # seen: `close` may have failed it while another error came

    def forget(self, number: int) -> None:
        """Called when a cage has ended."""
        if self._register is not None:
            with contextlib.suppress(OSError):
                self._register.send(json.dumps({"number": number}).encode())

    def start(self) -> tuple[socket.socket, socket.socket]:
        """Start the helper unless it runs; return its register and its setup tasks.

        Raises:
            CageStartFailed: it cannot be started.
        """
        loop = asyncio.get_running_loop()
        if self._register is not None and self._setup_tasks is not None and self._loop is loop:
            return self._register, self._setup_tasks
        self.close()
        register, theirs = _pair()
        try:
            setup_tasks, their_setup_tasks = _pair()
        except CageStartFailed:
            register.close()
            theirs.close()
            raise
        try:
            theirs_to_know = [
                str(their_setup_tasks.fileno()),
                daemon_mark(),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(  # noqa: S603 - our own file, our own interpreter
                [self._interpreter, "-I", "-S", _SCRIPT, *theirs_to_know],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=[their_setup_tasks.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            register.close()
            setup_tasks.close()
            raise CageStartFailed(f"the setup helper could not be started: {error}") from error
        finally:
            theirs.close()
            their_setup_tasks.close()
        for one in (register, setup_tasks):
            one.setblocking(False)
            loop.add_reader(one, self._answered, one)
        self._loop, self._register, self._setup_tasks = loop, register, setup_tasks
        return register, setup_tasks

    def close(self) -> None:
        """End the helper process and fail whatever still waits for it. Safe to call twice."""
        channels, process = (self._register, self._setup_tasks), self._process
        self._register = self._setup_tasks = self._process = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        for channel in channels:
            if channel is not None:
                if self._loop is not None and not self._loop.is_closed():
                    self._loop.remove_reader(channel)
                channel.close()  # its workers wait there and end with it
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(CageStartFailed("the setup helper ended"))

    async def _send(self, channel: socket.socket, body: JsonObject) -> None:
        message = json.dumps(body).encode()
        async with self._sending:  # one at a time may wait for room
            while True:
                try:
                    channel.send(message)
                except BlockingIOError:
                    await writable(channel.fileno())
                else:
                    return

    def _answered(self, channel: socket.socket) -> None:
        try:
            message = channel.recv(setup_helper_main.MAX_MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message = b""
        if not message:
            self.close()
            return
        answer = json.loads(message)
        waiter = self._waiting.get(answer["number"])
        if waiter is None or waiter.done():
            return
        if answer.get("ended"):
            waiter.set_exception(CageStartFailed("bwrap ended before the command was started"))
        elif "error" in answer:
            why = f"the limits of the cage could not be set: {answer['error']}"
            waiter.set_exception(CageUnavailable(why, row="cage.limits"))
        else:
            waiter.set_result(SetupDone(bool(answer["ceilings"]), bool(answer["covered"])))


def _pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise CageStartFailed(f"the setup helper could not be started: {error}") from error


def inotify_ceilings() -> tuple[tuple[str, int], ...]:
    """Return a cage's share of what its uid may watch: small enough that many cages fit.

    The uid's own ceiling stays the sum; a share of a thirty-second part leaves the daemon room
    next to thirty cages that all want everything.
    """
    whole = _host_number("max_inotify_instances")
    instances = min(INOTIFY_INSTANCES, max(2, whole // 32)) if whole else INOTIFY_INSTANCES
    watches = _host_number("max_inotify_watches")
    return (
        ("max_inotify_instances", instances),
        ("max_inotify_watches", min(INOTIFY_WATCHES, max(64, watches // 32)) if watches else 64),
    )


def _host_number(name: str) -> int:
    try:
        fd = os.open(f"/proc/sys/user/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        text = os.read(fd, 64).strip()
    finally:
        os.close(fd)
    return int(text) if text.isdigit() else 0
