"""`BinFolder`: a directory of programs as one cage sees it, made ahead of time.

A link costs bwrap a handful of system calls, and a strict cage shows a hundred base programs. So
the links of `/usr/bin` lie ready in a directory of the daemon's cache, which costs one mount. Where
a program of the host belongs into it, an empty file holds its place for the mount. The directory is
named by what is in it: cages with the same programs share it, read-only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.errors import CageStartFailed

_PREFIX = "bin-"


@dataclass(frozen=True, slots=True)
class BinFolder:
    """What lies in one such directory: links by name and target, and the places of files."""

    cache_dir: str
    links: tuple[tuple[str, str], ...]
    places: tuple[str, ...]

    @property
    def path(self) -> str:
        """Where it lies on the host."""
        digest = hashlib.sha256(repr((self.links, self.places)).encode(errors="surrogateescape"))
        return f"{self.cache_dir}/{_PREFIX}{digest.hexdigest()[:24]}"


def fold_name(path: str) -> str:
    """Return such a directory's name without its cache, for a text that is the same anywhere."""
    return PurePosixPath(path).name


def stock_bin_folder(folder: BinFolder) -> None:
    """Make the directory unless it is there as it should be.

    Safe when several daemons do it at once: it appears whole, by rename, or not at all.

    Raises:
        CageStartFailed: the cache cannot be written.
    """
    place = Path(folder.path)
    try:
        if not _whole(place, folder):
            _build(place, folder)
        if not _whole(place, folder):
            raise OSError(f"{place} is not what was written there")
    except OSError as error:
        raise CageStartFailed(f"the programs of the cage could not be laid out: {error}") from error


def _whole(place: Path, folder: BinFolder) -> bool:
    try:
        with os.scandir(place) as entries:
            found = {one.name: one.is_symlink() for one in entries}
        wanted = dict.fromkeys(folder.places, False) | {name: True for name, _ in folder.links}
        return found == wanted and all(
            os.readlink(f"{place}/{name}") == target  # noqa: PTH115 - a hundred in a row
            for name, target in folder.links
        )
    except OSError:
        return False


def _build(place: Path, folder: BinFolder) -> None:
    work = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}new-", dir=place.parent))
    try:
        for name, target in folder.links:
            (work / name).symlink_to(target)
        for name in folder.places:
            (work / name).touch(mode=0o444)
            (work / name).chmod(0o444)
        work.chmod(0o755)  # whatever the umask is: cages of other users read from it
        if place.exists():  # damaged: put it aside first, rename replaces only empty directories
            aside = work.with_name(work.name + "-old")
            place.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(OSError):  # another daemon was faster; its directory is the same
            work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
