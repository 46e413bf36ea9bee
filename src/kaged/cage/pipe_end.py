"""`PipeEnd`: a descriptor on its way to an event loop, closed once and by one side only.

asyncio's transports close the file object that they were given; uvloop closes the descriptor itself
and then the file object as well. With an ordinary file that is two closes of one number, and what
another thread has opened under it in between is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


class PipeEnd:
    """Owns a descriptor until a loop does. Anybody may call `close`, any number of times."""

    __slots__ = ("_fd", "_loops")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loops = False

    @property
    def closed(self) -> bool:
        """Whether it is closed, or a loop has closed it."""
        return self._fd < 0

    def fileno(self) -> int:
        """Return the descriptor. Raises ValueError when it is closed."""
        if self._fd < 0:
            raise ValueError("the end of the pipe is closed")
        return self._fd

    def close(self) -> None:
        """Close it, unless that is a loop's business by now."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and not self._loops:
            os.close(fd)

    def hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a loop have it; from now on a loop that closes descriptors itself does so here."""
        self._loops = not isinstance(loop, asyncio.BaseEventLoop)

    def not_taken(self, error: BaseException, was: os.stat_result) -> None:
        """Close it after a loop failed to take it, if the loop has not done so already."""
        if self._fd >= 0 and self._loops and not isinstance(error, asyncio.CancelledError):
            # It may have failed before or after it began to use it; the file tells.
            with contextlib.suppress(OSError):
                self._loops = not os.path.samestat(os.fstat(self._fd), was)
        self.close()


async def connect_read_end(
    end: PipeEnd, factory: Callable[[], P]
) -> tuple[asyncio.ReadTransport, P]:
    """Attach a protocol to a readable end, which is owned from here on, whatever happens."""
    loop = asyncio.get_running_loop()
    was = os.fstat(end.fileno())
    end.hand_over(loop)
    try:
        return await loop.connect_read_pipe(factory, end)
    except BaseException as error:
        end.not_taken(error, was)
        raise


async def connect_write_end(
    end: PipeEnd, factory: Callable[[], P]
) -> tuple[asyncio.WriteTransport, P]:
    """Attach a protocol to a writable end, which is owned from here on, whatever happens."""
    loop = asyncio.get_running_loop()
    was = os.fstat(end.fileno())
    end.hand_over(loop)
    try:
        return await loop.connect_write_pipe(factory, end)
    except BaseException as error:
        end.not_taken(error, was)
        raise
