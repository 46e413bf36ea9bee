"""`run_in_foreground`: a caged program in place of the command that started it.

At a terminal it gets one of its own. In a pipeline its three streams are copied: with the caller's
own descriptors it could open the files behind them anew, for more than they are open for. Its exit
code passes through, and so do the signals that the caller is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import Final

from kaged.cage.process import CageProcess
from kaged.cage.protected.findings import Findings
from kaged.cage.report import ExitReport
from kaged.cage.request import CageRequest, Pipes
from kaged.cage.shell import run_shell, write_all
from kaged.cage.spawn import Spawner
from kaged.cage.waiting import readable

CHUNK: Final = 64 * 1024
PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


async def run_in_foreground(spawner: Spawner, request: CageRequest) -> tuple[ExitReport, Findings]:
    """Run a request's command until it ends.

    Returns how it ended, and what it wrote of protected paths.
    """
    streams = [one.fileno() for one in (sys.stdin, sys.stdout)]
    if all(map(os.isatty, streams)):
        return await run_shell(spawner, request)
    process = await spawner.spawn(replace(request, stdio=Pipes()))
    async with process:
        with _signals(process):
            async with asyncio.TaskGroup() as copying:
                feeding = copying.create_task(_feed(process.take_fd("stdin")))
                for name, number in (("stdout", 1), ("stderr", 2)):
                    copying.create_task(asyncio.to_thread(_copy, process.take_fd(name), number))
                report = await process.wait()
                feeding.cancel()
        return report, process.findings


async def _feed(theirs: int) -> None:
    """Hand on what the caller reads, until one of the two ends."""
    keys = sys.stdin.fileno()
    try:
        with contextlib.suppress(BrokenPipeError):
            while True:
                # What cannot be waited for, such as a file, can be read at once.
                with contextlib.suppress(PermissionError):
                    await readable(keys)
                data = os.read(keys, CHUNK)
                if not data:
                    return
                await asyncio.to_thread(write_all, theirs, data)
    finally:
        os.close(theirs)


def _copy(theirs: int, ours: int) -> None:
    try:
        while data := os.read(theirs, CHUNK):
            write_all(ours, data)
    except BrokenPipeError:
        return  # nobody reads any more; closing our end tells the program
    finally:
        os.close(theirs)


@contextlib.contextmanager
def _signals(process: CageProcess) -> Generator[None]:
    """Pass on the signals that the caller is sent."""
    loop = asyncio.get_running_loop()
    for number in PASSED_ON:
        loop.add_signal_handler(number, process.signal, number)
    try:
        yield
    finally:
        for number in PASSED_ON:
            loop.remove_signal_handler(number)
