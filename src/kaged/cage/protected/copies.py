"""`ConfigCopies`: guests write to copies of git's configuration; the daemon publishes what is fit.

In a cage each of these files is a link to its copy, mounted over the file. Git follows such a link
to where it locks and renames, so it works as ever, and the file itself is out of a guest's reach:
nobody outside ever reads what was not looked at first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.base.plain_files import write_over
from kaged.cage.protected.files import (
    MAX_KEPT_BYTES,
    Content,
    open_folder,
    put_content,
    read_content,
)
from kaged.cage.protected.tree import Parts, ProtectedTree

MAX_COPIES: Final = 32
MAX_PATH_CHARS: Final = 500
INSIDE: Final = "/run/kaged-git"
LOCK: Final = ".lock"
RESTING_NS: Final = 1_000_000_000

FolderId: TypeAlias = tuple[int, int]
"""Device and number of a folder or file."""


@dataclass(slots=True)
class ConfigCopy:
    """One configuration file with a copy; `synced` is what both held when they were last equal."""

    parts: Parts
    number: int
    folder: FolderId
    file: FolderId
    synced: bytes
    judged: bytes | None = None
    """What a guest had left in the copy when it was last published."""
    refused: tuple[str, ...] = ()
    """The keys of it that were not."""

    @property
    def place(self) -> Parts:
        """Where the copy lies below the folder of all copies."""
        return (str(self.number), self.parts[-1])


@dataclass(frozen=True, slots=True)
class CoverLink:
    """A link that is to be mounted over a file in a waiting cage."""

    folder: str
    folder_id: FolderId
    name: str
    target: str


class ConfigCopies:
    """The copies of one tree, in one folder that every cage over the tree is shown."""

    def __init__(self, tree: ProtectedTree, below: Path) -> None:
        name = hashlib.sha256(os.fsencode(tree.root)).hexdigest()[:16]
        self.folder = below / name
        self.inside = f"{INSIDE}/{name}"
        self.known: dict[Parts, ConfigCopy] = {}
        self._tree = tree

    def rebase(self, files: Iterable[Parts]) -> None:
        """Make copies of these files anew, as far as they are plain files. Blocks."""
        self.remove()
        with contextlib.suppress(OSError):
            for parts in sorted(files, key=lambda one: (len(one), one))[:MAX_COPIES]:
                self._add(parts)

    def remove(self) -> None:
        """Remove every copy. Only while no guest runs."""
        self.known = {}
        # A guest may have put anything beside its copy, also deeper than Python can follow.
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(self.folder)

    def links(self) -> tuple[CoverLink, ...]:
        """Return what is to be mounted where."""
        return tuple(
            CoverLink(
                self._tree.path(one.parts[:-1]),
                one.folder,
                one.parts[-1],
                f"{self.inside}/{one.number}/{one.parts[-1]}",
            )
            for one in self.known.values()
        )

    def folders(self) -> tuple[str, ...]:
        """Return the folders in which guests write copies."""
        return tuple(str(self.folder / str(one.number)) for one in self.known.values())

    def still_there(self, copy: ConfigCopy) -> bool:
        """Return whether the file is the one that was mounted over, in the same folder."""
        try:
            with open_folder(self._tree.root, copy.parts[:-1]) as fd:
                file = os.stat(copy.parts[-1], dir_fd=fd, follow_symlinks=False)
                return (_id_of(os.fstat(fd)), _id_of(file)) == (copy.folder, copy.file)
        except OSError:
            return False

    def read(self, copy: ConfigCopy) -> Content:
        """Return what a guest has left in a copy. Raises OSError."""
        return read_content(str(self.folder), copy.place)

    def rests(self, copy: ConfigCopy) -> bool:
        """Return whether no guest has written a copy for a while. Raises OSError."""
        written_ns = self.folder.joinpath(*copy.place).lstat().st_ctime_ns
        return time.time_ns() - written_ns > RESTING_NS

    def put(self, copy: ConfigCopy, data: bytes, mode: int) -> None:
        """Write a copy, whatever a guest has put in its place. Raises OSError."""
        try:
            put_content(str(self.folder), copy.place, data, mode)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                raise
            name = self.folder / str(copy.number)
            if os.path.lexists(name):
                name.rename(self.folder / f"moved-{secrets.token_hex(8)}")
            self._make_folder(name)
            put_content(str(self.folder), copy.place, data, mode)

    def publish(self, copy: ConfigCopy, data: bytes, *, by_force: bool) -> bool:
        """Make a text the file's; return whether that could be done now. Raises OSError.

        False while somebody else has the file locked, or has just changed it. `by_force` ends the
        waiting for a lock. The file stays the same one: with another in its place, the kernel
        would take the links over it away.
        """
        parts = copy.parts
        lock = f"{parts[-1]}{LOCK}"
        with open_folder(self._tree.root, parts[:-1]) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                # Like git's, it has the whole text: should the daemon end now, nothing is lost.
                with os.fdopen(os.open(lock, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
            except FileExistsError:
                if not by_force:
                    return False
                lock = ""
            try:
                fd = os.open(parts[-1], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(fd, "r+b", buffering=0) as file:
                    found = file.read(MAX_KEPT_BYTES + 1)
                    if _id_of(os.fstat(fd)) != copy.file or found != copy.synced:
                        return False
                    write_over(fd, found, data)
            finally:
                if lock:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(lock, dir_fd=folder)
        copy.synced = data
        return True

    def _add(self, parts: Parts) -> None:
        if len(self._tree.path(parts)) > MAX_PATH_CHARS:
            return
        try:
            with open_folder(self._tree.root, parts[:-1]) as fd:
                folder = _id_of(os.fstat(fd))
                file = _id_of(os.stat(parts[-1], dir_fd=fd, follow_symlinks=False))
            found = read_content(self._tree.root, parts)
        except OSError:
            return
        if found.data is None or not stat.S_ISREG(found.mode):
            return
        copy = ConfigCopy(parts, len(self.known), folder, file, found.data)
        self._make_folder(self.folder / str(copy.number))
        put_content(str(self.folder), copy.place, found.data, found.mode)
        self.known[parts] = copy

    def _make_folder(self, path: Path) -> None:
        """Make a folder that belongs to whom the tree belongs to. Raises OSError."""
        above = self.folder.parent
        if not above.is_dir():
            above.mkdir(parents=True, exist_ok=True)
            above.chmod(0o711)  # whatever the umask: a cage of a root daemon may be another user's
        owner = Path(self._tree.root).stat()
        for one in (self.folder, path):
            with contextlib.suppress(FileExistsError):
                one.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _id_of(entry: os.stat_result) -> FolderId:
    return entry.st_dev, entry.st_ino
