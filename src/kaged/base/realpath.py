"""`real_path`: resolve a path in a tree that somebody else may be changing at this moment."""

from __future__ import annotations

import errno
import os
from typing import Final

_TRIES: Final = 16


def real_path(path: str | os.PathLike[str]) -> str:
    """Give a path with every link resolved; what does not exist stays as it is written.

    `os.path.realpath` looks at a link and then reads it; when it is replaced in between, the read
    fails, although the path was never wrong. A few tries settle every honest change; who swaps
    links all the time gets an error the caller must turn into its refusal.

    Raises:
        OSError: the path kept changing while it was looked at.
    """
    for _ in range(_TRIES):
        try:
            return os.path.realpath(path)
        except OSError:
            continue  # a link went away, or became something else, between the two looks
    raise OSError(errno.EAGAIN, "it changes while it is being looked at", os.fspath(path))


__all__ = ["real_path"]
