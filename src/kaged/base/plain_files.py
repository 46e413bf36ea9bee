"""Plain files: read one without waiting for it, and write another text into one where it lies."""

from __future__ import annotations

import os
import stat
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_plain_file(path: str, limit: int) -> bytes | None:
    """Return what a file holds, links followed; None where there is no plain one of that size."""
    try:
        # A named pipe or a device in its place must not keep us waiting.
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(limit + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= limit else None


def write_over(fd: int, old: bytes, new: bytes) -> None:
    """Turn a file's text into another so that no reader sees a mixture of both. Raises OSError.

    The kernel shows a shorter or longer file in one step each, so the text is cut where the two
    begin to differ, at the end of a line, and goes on from there.
    """
    differ = (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    same = next(differ, min(len(old), len(new)))
    if same < len(old):
        same = old.rfind(b"\n", 0, same) + 1
        os.ftruncate(fd, same)
    rest = memoryview(new)[same:]
    while rest:
        written = os.pwrite(fd, rest, same)
        same += written
        rest = rest[written:]
