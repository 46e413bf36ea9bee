"""Standard input, output and error of a child: three pipes, or one pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import TypeVar

from kaged.cage.pipe_end import PipeEnd, connect_read_end, connect_write_end
from kaged.cage.request import Pipes, Pty, Stdio

P = TypeVar("P", bound=asyncio.BaseProtocol)


class StdioEnds:
    """Both ends until the child has its own; then the daemon's ends until they are taken.

    A pseudo-terminal is one descriptor for reading and writing: `stdin` and `stdout` are two
    descriptors of it, `stderr` is None.
    """

    def __init__(self, kind: Stdio) -> None:
        self.kind = kind
        self._theirs: tuple[int, int, int] | None = None
        self._ours: dict[str, int] = {}
        self._empty = -1  # /dev/null, which is the host's and keeps its owner
        if isinstance(kind, Pty):
            self._open_pty(kind)
        else:
            self._open_pipes(kind)

    @property
    def theirs(self) -> tuple[int, int, int]:
        """The child's descriptors for 0, 1 and 2."""
        if self._theirs is None:
            raise ValueError("the child already has its descriptors")
        return self._theirs

    def give_to(self, uid: int, gid: int) -> None:
        """Let a child of another uid open its own standard streams again by name."""
        for fd in set(self.theirs) - {self._empty}:
            os.fchown(fd, uid, gid)

    def started(self) -> None:
        """Close the child's ends: it has its own copies now."""
        if self._theirs is not None:
            for fd in set(self._theirs):
                os.close(fd)
            self._theirs = None

    def fd(self, name: str) -> int | None:
        """Return one of our ends without taking it."""
        return self._ours.get(name)

    def take(self, name: str) -> int:
        """Take one of our ends (`stdin`, `stdout`, `stderr`); the caller closes it from now on."""
        try:
            return self._ours.pop(name)
        except KeyError:
            raise ValueError(f"{name} is not there to be taken") from None

    def peek_errors(self, limit: int = 4096) -> str:
        """Read what a child that failed to start left on its standard error."""
        fd = self._ours.get("stderr", self._ours.get("stdout"))
        if fd is None:
            return ""
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):
            return os.read(fd, limit).decode(errors="replace").strip()
        return ""

    def resize(self, rows: int, cols: int) -> None:
        """Set a pseudo-terminal's new size and signal the programs on it."""
        fd = self._ours.get("stdin", self._ours.get("stdout"))
        if isinstance(self.kind, Pty) and fd is not None:
            _set_size(fd, rows, cols)

    def close(self) -> None:
        """Close everything that was not taken. Safe to call twice."""
        self.started()
        while self._ours:
            os.close(self._ours.popitem()[1])

    def _open_pipes(self, kind: Pipes) -> None:
        opened: list[int] = []
        try:
            for _ in range(1 if kind.merge_stderr else 2):
                opened += os.pipe2(os.O_CLOEXEC)
            if kind.stdin:
                given, self._ours["stdin"] = os.pipe2(os.O_CLOEXEC)
            else:
                given = self._empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        read_out, write_out, *errors = opened
        self._ours["stdout"] = read_out
        if errors:
            self._ours["stderr"] = errors[0]
        self._theirs = (given, write_out, errors[1] if errors else write_out)

    def _open_pty(self, kind: Pty) -> None:
        ours, theirs = os.openpty()
        self._ours = {"stdout": ours}
        self._theirs = (theirs, theirs, theirs)
        try:
            _set_size(theirs, kind.rows, kind.cols)
            if kind.keys:
                self._ours["stdin"] = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 3)
            else:
                self._empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                self._theirs = (self._empty, theirs, theirs)
        except OSError:
            self.close()
            raise


async def connect_reader(fd: int, factory: Callable[[], P]) -> tuple[asyncio.ReadTransport, P]:
    """Attach a protocol to a readable descriptor; the transport closes it."""
    return await connect_read_end(PipeEnd(fd), factory)


async def connect_writer(fd: int, factory: Callable[[], P]) -> tuple[asyncio.WriteTransport, P]:
    """Attach a protocol to a writable descriptor; the transport closes it."""
    return await connect_write_end(PipeEnd(fd), factory)


def _set_size(fd: int, rows: int, cols: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
