"""`run_shell`: an interactive shell inside a cage, on the terminal of whoever asks. For authors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator
from dataclasses import replace

from kaged.cage.process import CageProcess
from kaged.cage.protected.findings import Findings
from kaged.cage.report import ExitReport
from kaged.cage.request import CageRequest, Pty
from kaged.cage.spawn import Spawner

_CHUNK = 64 * 1024


async def run_shell(spawner: Spawner, request: CageRequest) -> tuple[ExitReport, Findings]:
    """Run a request's command in its cage on the caller's own terminal, until it ends.

    The cage gets a fresh pseudo-terminal; the caller's is only copied from and to, so nothing
    inside can type into it. Returns how it ended, and what it wrote of protected paths.
    """
    rows, cols = _size()
    process = await spawner.spawn(replace(request, stdio=Pty(rows, cols)))
    async with process:
        with _raw(sys.stdin.fileno()), _copying(process):
            report = await process.wait()
        return report, process.findings


def _size() -> tuple[int, int]:
    try:
        found = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        return 24, 80
    return found.lines, found.columns


@contextlib.contextmanager
def _raw(fd: int) -> Generator[None]:
    """Hand every key to the cage, Ctrl-C included, and give the terminal back as it was."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _copying(process: CageProcess) -> Generator[None]:
    loop = asyncio.get_running_loop()
    theirs = process.stdout_fd
    keys, screen = sys.stdin.fileno(), sys.stdout.fileno()
    assert theirs is not None

    def from_cage() -> None:
        try:
            data = os.read(theirs, _CHUNK)
        except OSError:  # a terminal whose last program is gone
            data = b""
        if data:
            write_all(screen, data)
        else:
            loop.remove_reader(theirs)

    def to_cage() -> None:
        data = os.read(keys, _CHUNK)
        if data:
            write_all(theirs, data)
        else:
            loop.remove_reader(keys)
            write_all(theirs, b"\x04")

    def resized() -> None:
        process.resize(*_size())

    loop.add_reader(theirs, from_cage)
    loop.add_reader(keys, to_cage)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_reader(keys)
        loop.remove_reader(theirs)
        _recent_output(theirs, screen)


def _recent_output(theirs: int, screen: int) -> None:
    os.set_blocking(theirs, False)
    with contextlib.suppress(OSError):
        while data := os.read(theirs, _CHUNK):
            write_all(screen, data)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however long that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
