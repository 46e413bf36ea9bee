"""`StartGate`: the two pipes of a start: bwrap names its child, then waits to be released."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Self

from kaged.cage.child import Child
from kaged.cage.errors import CageStartFailed
from kaged.cage.orphan_processes import gate_name
from kaged.cage.waiting import readable

INFO_TIMEOUT_S = 20.0
READY_TIMEOUT_S = 30.0
_INFO_LIMIT_BYTES = 4096


class StartGate:
    """The pipes of one start. A context manager: whatever happens, nothing stays open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fds: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._fds["info"], self._fds["info_end"] = os.pipe2(os.O_CLOEXEC)
            # A pipe with a name: whoever holds it open is known for a cage on its way, even when
            # this process is gone.
            path = self._folder / gate_name()
            os.mkfifo(path, 0o600)
            try:
                # Readable and writable: bwrap takes an end of file for its release, and a pipe
                # that the reader could write to itself has none.
                self._fds["block_end"] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                self._fds["block"] = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            finally:
                path.unlink()
        except BaseException:
            self._close(*list(self._fds))
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close(*list(self._fds))

    @property
    def info_end(self) -> int:
        """Where bwrap writes its child's pid."""
        return self._fds["info_end"]

    @property
    def block_end(self) -> int:
        """Where bwrap waits."""
        return self._fds["block_end"]

    def started(self) -> None:
        """Close bwrap's ends: it has its own copies now."""
        self._close("info_end", "block_end")

    async def init_pid(self, child: Child) -> int:
        """Read the pid of the cage's first process.

        Raises:
            CageStartFailed: bwrap gave up before it had one.
        """
        data = bytearray()
        async with _timeout(INFO_TIMEOUT_S, "bwrap did not start a process in time"):
            while True:
                await readable(self._fds["info"])
                chunk = os.read(self._fds["info"], _INFO_LIMIT_BYTES)
                data += chunk
                if not chunk or len(data) > _INFO_LIMIT_BYTES:
                    raise CageStartFailed("bwrap ended before there was a cage")
                with contextlib.suppress(ValueError, KeyError):
                    return int(json.loads(data)["child-pid"])

    async def release(self, child: Child) -> None:
        """Let the command run, and wait until bwrap has left the gate.

        Raises:
            CageStartFailed: bwrap gave up instead.
        """
        block = self._fds["block"]
        try:
            os.write(block, b"x")
        except BrokenPipeError as error:
            raise CageStartFailed("bwrap ended before the command was started") from error
        # The last reader closes its end when it has read, or when it dies; the byte tells which.
        async with _timeout(READY_TIMEOUT_S, "the cage was not set up in time"):
            await readable(block)
        unread = struct.unpack("i", fcntl.ioctl(block, termios.FIONREAD, b"\0" * 4))[0]
        if unread:
            raise CageStartFailed("bwrap ended before the command was started")

    def kill(self, child: Child) -> None:
        """Kill bwrap and the cage's first process, before any pipe is closed, and reap.

        The first process is tied to bwrap only after its release. Until then both are in the one
        process group that bwrap leads, and the kernel ends a group at one stroke.
        """
        child.kill_group_now()

    def _close(self, *names: str) -> None:
        for name in names:
            fd = self._fds.pop(name, None)
            if fd is not None:
                os.close(fd)


@contextlib.asynccontextmanager
async def _timeout(seconds: float, message: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise CageStartFailed(message) from error
