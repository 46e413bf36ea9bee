"""`InstanceLock`: one daemon per home, held by the kernel and explained by the file's content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
from pathlib import Path

from kaged.base import JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass

MAX_LOCK_BYTES = 4096

# An open-file-description lock: like flock it belongs to the open file and dies with it, and unlike
# flock it can be asked after without being taken, so `kaged status` never gets in the way of a
# daemon that is starting. The layout is struct flock of 64-bit offsets.
_FLOCK = struct.Struct("hhqqi4x")


@dataclass(frozen=True, slots=True)
class Holder:
    """What a daemon writes into the lock for others to read."""

    pid: int
    started_ms: int


class InstanceLock:
    """A held lock. The kernel lets go of it when the process ends, however it ends.

    A file without a holder is just a note of an earlier daemon: `stale` names it, nobody has to
    clean up.
    """

    def __init__(self, path: Path, fd: int, stale: Holder | None) -> None:
        self.path = path
        self.stale = stale
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path, started_ms: int) -> InstanceLock:
        """Take the lock and write our name into it.

        Raises:
            KagedError: `daemon_running`; another process holds it.
            KagedError: `home_unusable`; the file cannot be opened or written.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
            before = _read(fd)
            os.ftruncate(fd, 0)
            note = json.dumps({"pid": os.getpid(), "started_ms": started_ms})
            os.pwrite(fd, note.encode("ascii"), 0)
            os.fsync(fd)
        except OSError as error:
            holder = _read(fd)
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise _running(path, holder) from error
            raise _unusable(path, error) from error
        return cls(path, fd, before)

    def release(self) -> None:
        """Let go; safe to call twice.

        The file stays, empty, so that no two processes race for a name that one just removed.
        """
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):  # the lock itself is let go by close in any case
            os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1


def holder_of(path: Path) -> Holder | None:
    """Return who holds the lock at this moment, None when it is free.

    A holder whose note cannot be read counts as pid 0: somebody is there.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
        if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK:
            return None
        return _read(fd) or Holder(0, 0)
    finally:
        os.close(fd)


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _read(fd: int) -> Holder | None:
    try:
        note: JsonValue = json.loads(os.pread(fd, MAX_LOCK_BYTES, 0) or b"null")
    except (OSError, ValueError):
        return None
    if not isinstance(note, dict):
        return None
    pid, started_ms = note.get("pid"), note.get("started_ms")
    if not isinstance(pid, int) or not isinstance(started_ms, int) or pid <= 0:
        return None
    return Holder(pid, started_ms)


def _running(path: Path, holder: Holder | None) -> KagedError:
    pid = holder.pid if holder else 0
    who = f"pid {pid}" if pid else "a process that did not leave its name"
    return KagedError(
        f"A daemon is already running on this home ({who}).",
        code="daemon_running",
        fix="Use it, stop it with `kaged daemon stop`, or set KAGED_HOME to another folder.",
        pid=pid,
        lock=str(path),
    )


def _unusable(path: Path, error: OSError) -> KagedError:
    return KagedError(
        f"Cannot lock {path}: {error.strerror}.",
        code="home_unusable",
        fix=f"Make {path.parent} writable for the user who runs the daemon.",
        path=str(path),
    )
