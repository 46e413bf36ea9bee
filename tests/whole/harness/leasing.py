"""`leased`: a file that takes as long to open as the test wants, for whoever opens it.

The kernel lets a file's owner take a lease on it. Who opens the file then waits until the owner
gives the lease back, or until `/proc/sys/fs/lease-break-time` (45 seconds) is over.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def leased(path: Path) -> Generator[None]:
    """Keep everybody who opens `path` waiting for as long as the block runs."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel tells that somebody waits
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(handle)
        signal.signal(signal.SIGIO, before)
