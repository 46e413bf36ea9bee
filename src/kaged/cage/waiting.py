"""`readable` and `writable`: wait for one descriptor on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read, or has an error or an end to report.

    For a pidfd that is the end of its process; for the writing end of a pipe, of its last reader.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _once(ready))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def writable(fd: int) -> None:
    """Wait until a descriptor has room to be written to. One waiter per descriptor at a time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _once(ready))
    try:
        await ready
    finally:
        loop.remove_writer(fd)


def _once(ready: asyncio.Future[None]) -> Callable[[], None]:
    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    return set_ready
