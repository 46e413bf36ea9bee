"""A program of its own: runs beside a debug adapter that listens, in the same cage.

    python3 adapter_relay.py [--program-output] -- COMMAND…

It starts the adapter, joins it where nobody else can, and carries its connections over its own
standard streams. In the command, one of these says where the two meet:

    ${client}   host:port where the relay waits; the adapter calls once and nobody is let in after
    ${port}     a free port of the loopback, on which the adapter listens
    ${socket}   the path of a socket in a directory that only this user may enter

Every message is a head of six bytes (kind, channel, size) and a body. Kinds:

    0 DATA      both ways, bytes of a connection; channel 0 is there from the start
    1 OPEN      to here: join the adapter once more, as this channel
    2 CLOSE     both ways: this connection is over
    3 OUTPUT    from here: what the program printed; channel 1 or 2 as the stream
    4 RUN       to here: start a program beside the adapter, {args, cwd, env}
    5 STARTED   from here: {pid} or {error}, the answer to RUN
    6 EXITED    from here: {code}, the program of RUN has ended and printed all it had to say

What was printed before something happened is told before it: the adapter's pipes are always read
before its connections. Standard library only; nothing of the daemon is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

HEAD: Final = struct.Struct(">BBI")
DATA, OPEN, CLOSE, OUTPUT, RUN, STARTED, EXITED = range(7)
JOIN_S: Final = 20.0
LOOK_S: Final = 0.02
CHUNK: Final = 64 * 1024
MAX_READS: Final = 32
MAX_FRAME: Final = 64 * 1024 * 1024
_LISTENING, _ESTABLISHED = "0A", "01"


class AdapterRelay:
    """One adapter, its connections, and at most one program started for it."""

    def __init__(self, command: list[str], *, program_output: bool) -> None:
        self.command = command
        self.program_output = program_output
        self.where = selectors.DefaultSelector()
        self.links: dict[int, socket.socket] = {}
        self.waiting: dict[int, bytearray] = {}
        self.heard = bytearray()
        self.joined = False
        self.adapter = 0
        self.program = 0
        self.pipes: dict[int, tuple[int, bool]] = {}
        self.meeting: socket.socket | None = None
        self.address: Any = None
        self.port = 0
        self.folder: str | None = None

    # -- beginning -------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the daemon hangs up or the adapter ends; returns the exit code."""
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.where.register(wake, selectors.EVENT_READ, "wake")
        self._meet()
        try:
            self.adapter = self._spawn(self.command, os.environ, None, program=False)
        except OSError as error:
            self._end(f"the adapter cannot be started: {error}")
        self._join()
        self.where.register(0, selectors.EVENT_READ, "daemon")
        while True:
            ready = self.where.select()
            for key, _ in sorted(ready, key=lambda one: one[0].data != "pipe"):
                self._serve(key, wake)
            for link in list(self.waiting):
                self._flush(link)
            self._reap()

    def _meet(self) -> None:
        words = " ".join(self.command)
        if "${client}" in words:
            self.meeting = socket.create_server(("127.0.0.1", 0), backlog=1)
            self._fill("${client}", f"127.0.0.1:{self.meeting.getsockname()[1]}")
        elif "${port}" in words:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.address = probe.getsockname()
            self.port = self.address[1]
            self._fill("${port}", str(self.port))
        else:
            self.folder = tempfile.mkdtemp(prefix="kaged-adapter-")
            self.address = f"{self.folder}/adapter"
            self._fill("${socket}", self.address)

    def _fill(self, name: str, value: str) -> None:
        self.command = [word.replace(name, value) for word in self.command]

    def _join(self) -> None:
        limit = time.monotonic() + JOIN_S
        while True:
            for key, _ in self.where.select(LOOK_S):
                if key.data == "pipe":
                    self._read_pipe(key.fd)
            link = self._call()
            if link is not None:
                self._add(0, link)
                self.joined = True
                return
            if os.waitpid(self.adapter, os.WNOHANG)[0]:
                self.adapter = 0
                self._read_pipes()
                self._end("the adapter ended before it could be joined")
            if time.monotonic() > limit:
                self._end("the adapter cannot be joined")

    def _call(self) -> socket.socket | None:
        """Join the adapter; None when it is not there yet."""
        if self.meeting is not None:
            self.meeting.setblocking(False)
            try:
                link, peer = self.meeting.accept()
            except BlockingIOError:
                return None
            if not _is_ours(peer[1], _ESTABLISHED):
                link.close()
                return None
            self.meeting.close()
            self.meeting = None
            return link
        if self.address is None:
            return None
        kind = socket.AF_INET if self.port else socket.AF_UNIX
        link = socket.socket(kind, socket.SOCK_STREAM)
        try:
            link.connect(self.address)
        except OSError:
            link.close()
            return None
        if self.port and not _is_ours(self.port, _LISTENING):
            self._end("another program listens where the adapter should")
        return link

    def _add(self, channel: int, link: socket.socket) -> None:
        link.setblocking(False)
        if link.family == socket.AF_INET:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.links[channel] = link
        self.waiting[channel] = bytearray()
        self.where.register(link, selectors.EVENT_READ, channel)

    # -- serving ---------------------------------------------------------------------------------

    def _serve(self, key: selectors.SelectorKey, wake: int) -> None:
        if key.data == "pipe":
            self._read_pipe(key.fd)
        elif key.data == "wake":
            with contextlib.suppress(BlockingIOError):
                os.read(wake, CHUNK)
        elif key.data == "daemon":
            self._hear()
        elif key.data in self.links:
            self._read_link(key.data)

    def _hear(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            self._end("")
        self.heard += data
        while len(self.heard) >= HEAD.size:
            kind, channel, size = HEAD.unpack_from(self.heard)
            if size > MAX_FRAME:
                self._end("the daemon sent too much")
            if len(self.heard) < HEAD.size + size:
                return
            body = bytes(self.heard[HEAD.size : HEAD.size + size])
            del self.heard[: HEAD.size + size]
            self._take(kind, channel, body)

    def _take(self, kind: int, channel: int, body: bytes) -> None:
        if kind == DATA and channel in self.links:
            self.waiting[channel] += body
        elif kind == OPEN:
            link = self._call()
            if link is None:
                _send(CLOSE, channel)
            else:
                self._add(channel, link)
        elif kind == CLOSE:
            self._drop(channel)
        elif kind == RUN:
            _send(STARTED, 0, json.dumps(self._start(json.loads(body))).encode())

    def _read_link(self, channel: int) -> None:
        # The adapter has printed already what it tells of now.
        self._read_pipes()
        try:
            data = self.links[channel].recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            _send(DATA, channel, data)
        else:
            self._drop(channel)
            _send(CLOSE, channel)

    def _flush(self, channel: int) -> None:
        link, rest = self.links.get(channel), self.waiting[channel]
        if link is None:
            del self.waiting[channel]
            return
        if rest:
            try:
                del rest[: link.send(rest)]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(channel)
                _send(CLOSE, channel)
                return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0)
        self.where.modify(link, wanted, channel)

    def _drop(self, channel: int) -> None:
        link = self.links.pop(channel, None)
        self.waiting.pop(channel, None)
        if link is not None:
            self.where.unregister(link)
            link.close()

    # -- processes -------------------------------------------------------------------------------

    def _start(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self.program:
            return {"error": "a program runs already"}
        env = dict(os.environ)
        for name, value in (asked.get("env") or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        try:
            self.program = self._spawn(asked["args"], env, asked.get("cwd"), program=True)
        except (OSError, ValueError) as error:
            return {"error": str(error)}
        return {"pid": self.program}

    def _spawn(
        self, command: list[str], env: Mapping[str, str], cwd: str | None,
        *, program: bool,
    ) -> int:  # fmt: skip
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        before = Path.cwd()
        try:
            if cwd:
                os.chdir(cwd)
            actions = [
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, out_end, 1),
                (os.POSIX_SPAWN_DUP2, err_end, 2),
            ]
            # This runs inside the debug adapter's cage; whatever it starts stays in there.
            pid = os.posix_spawnp(command[0], command, env, file_actions=actions)  # noqa: TID251 - see above
        except OSError:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.chdir(before)
            for fd in (out_end, err_end, nothing):
                os.close(fd)
        for fd, stream in ((out, 1), (err, 2)):
            os.set_blocking(fd, False)
            self.pipes[fd] = stream, program
            self.where.register(fd, selectors.EVENT_READ, "pipe")
        return pid

    def _read_pipes(self) -> None:
        for fd in list(self.pipes):
            self._read_pipe(fd)

    def _read_pipe(self, fd: int) -> None:
        stream, program = self.pipes.get(fd, (0, False))
        # A program that never stops printing must not keep us from everything else.
        for _ in range(MAX_READS if stream else 0):
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.where.unregister(fd)
                del self.pipes[fd]
                os.close(fd)
                return
            if program or (self.program_output and self.joined):
                _send(OUTPUT, stream, data)
            else:
                os.write(2, data)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._read_pipes()
            code = os.waitstatus_to_exitcode(status)
            if pid == self.program:
                self.program = 0
                _send(EXITED, 0, json.dumps({"code": code if code >= 0 else 128 - code}).encode())
            elif pid == self.adapter:
                self.adapter = 0
                for channel, link in list(self.links.items()):
                    with contextlib.suppress(OSError):
                        while data := link.recv(CHUNK):
                            _send(DATA, channel, data)
                    _send(CLOSE, channel)
                self._end("")

    def _end(self, reason: str) -> NoReturn:
        if reason:
            os.write(2, f"{reason}\n".encode())
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        for pid in (self.adapter, self.program):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        sys.exit(1 if reason else 0)


def _is_ours(port: int, state: str) -> bool:
    """Return whether every socket of this port is this user's own."""
    owners = [
        fields[7]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for fields in map(str.split, Path(table).read_text("ascii").splitlines()[1:])
        if fields[3] == state and int(fields[1].rpartition(":")[2], 16) == port
    ]
    return bool(owners) and all(int(one) == os.getuid() for one in owners)


def _send(kind: int, channel: int, body: bytes = b"") -> None:
    rest = memoryview(HEAD.pack(kind, channel, len(body)) + body)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    options, _, wanted = sys.argv[1:], "--", sys.argv[sys.argv.index("--") + 1 :]
    sys.exit(AdapterRelay(wanted, program_output=options[0] == "--program-output").run())
