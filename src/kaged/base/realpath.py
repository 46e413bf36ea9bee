"""`real_path`: resolve a path in a tree that somebody else may be changing at this moment."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final

_TRIES: Final = 16
# Since 3.13 `realpath` takes a link that it cannot read for a plain name, and says nothing.
_IGNORES_FAILED_READS: Final = sys.version_info >= (3, 13)


def real_path(path: str | os.PathLike[str]) -> str:
    """Return a path with every link resolved; what does not exist stays as it is written.

    `os.path.realpath` looks at a link and then reads it; when it is replaced in between, the read
    fails, although the path was never wrong. A few tries settle every honest change; who swaps
    links all the time gets an error the caller must turn into its refusal.

    Raises:
        OSError: the path kept changing while it was looked at.
    """
    for _ in range(_TRIES):
        try:
            found = os.path.realpath(path)
        except OSError:
            continue  # a link went away, or became something else, between the two looks
        if not _IGNORES_FAILED_READS or not _leads_through_link(found):
            return found
    raise OSError(errno.EAGAIN, "it changes while it is being looked at", os.fspath(path))


def _leads_through_link(path: str) -> bool:
    """Return whether a part of a resolved path is a link after all; a loop does not count."""
    part = Path("/")
    for name in path.split("/")[1:]:
        part = part / name
        if part.is_symlink():
            try:
                part.stat()
            except OSError as error:
                return error.errno != errno.ELOOP
            return True
    return False
