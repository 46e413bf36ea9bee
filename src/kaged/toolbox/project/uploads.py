"""Files that people give along, put where the agent that works for them can find them.

Those of the operator land in the project, in `.kaged/tmp/<folder>/`. An agent may have put anything
there, so no link on the way is followed and no file that exists is opened. Those of a person lie
outside every project (`PersonUploads`): agents of others work in the same project.
"""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
from collections.abc import Generator, Mapping, Sequence
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.project.errors import WorkError

FILES_LIMIT: Final = 20
FILE_LIMIT_BYTES: Final = 16 * 1024 * 1024
NAME_LIMIT_BYTES: Final = 120
TMP_FOLDERS: Final = (".kaged", "tmp")
TMP_SHOWN: Final = "config:/tmp"

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Upload:
    """One file as it came in: the name that the sender says it has, and its bytes."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class UploadPlace:
    """Where uploads go: below a root that is ours, in a folder, and as agents name it."""

    root: str
    folders: tuple[str, ...]
    shown: str

    @classmethod
    def in_project(cls, root: str, folder: str) -> UploadPlace:
        """Return the place of the operator's uploads. Raises `upload_refused`."""
        _require_plain(folder)
        return cls(root, (*TMP_FOLDERS, folder), f"{TMP_SHOWN}/{folder}")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where uploads are now, by field, as agents name them."""

    paths: dict[str, str]
    place: UploadPlace
    names: tuple[str, ...]

    def discard(self) -> None:
        """Take the files away again; for an answer that could not be kept. Blocks on the disk."""
        *above, folder = self.place.folders
        with contextlib.suppress(OSError), _closing(_open(self.place.root, above)) as tmp:
            with _closing(os.open(folder, _DIRECTORY, dir_fd=tmp)) as place:
                for name in self.names:
                    os.unlink(name, dir_fd=place)
            os.rmdir(folder, dir_fd=tmp)


def store_uploads(place: UploadPlace, files: Mapping[str, Upload]) -> Stored:
    """Write files into a new folder. Blocks on the disk.

    Raises `upload_refused` when too many or too large, a link is in the way, or the disk refuses.
    """
    if len(files) > FILES_LIMIT:
        raise WorkError(f"At most {FILES_LIMIT} files can be given along.", code="upload_refused")
    for field, file in files.items():
        if len(file.data) > FILE_LIMIT_BYTES:
            raise WorkError(
                f"{field}: a file has at most {FILE_LIMIT_BYTES} bytes.", code="upload_refused"
            )
    try:
        return _store(place, files)
    except OSError as error:
        raise WorkError(
            f"The file cannot be stored in {place.shown}: {error.strerror or error}.",
            code="upload_refused",
            fix="make .kaged and .kaged/tmp plain folders that the daemon can write to",
        ) from error


def _require_plain(folder: str) -> None:
    if _FOLDER.fullmatch(folder) is None:
        raise WorkError("The folder for uploads has no proper name.", code="upload_refused")


def _store(place: UploadPlace, files: Mapping[str, Upload]) -> Stored:
    with _closing(_open(place.root, place.folders, make=True)) as folder:
        taken: set[str] = set()
        paths: dict[str, str] = {}
        for field, file in files.items():
            name = _free(safe_name(file.name), taken)
            taken.add(name)
            _write(name, file.data, folder)
            paths[field] = f"{place.shown}/{name}"
        os.fsync(folder)
        return Stored(paths, place, tuple(sorted(taken)))


def safe_name(name: str) -> str:
    """Make a plain file name of what somebody says a file is called."""
    last = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    kept = "".join(char if char.isalnum() or char in "._- " else "_" for char in last)
    plain = kept.strip(" .").encode("utf-8", "replace")
    if len(plain) > NAME_LIMIT_BYTES:
        stem, dot, ending = plain.rpartition(b".")
        tail = dot + ending if len(ending) <= 10 else b""
        plain = (stem or plain)[: NAME_LIMIT_BYTES - len(tail)] + tail
    return plain.decode("utf-8", "ignore") or "file"


def _free(name: str, taken: set[str]) -> str:
    """Return a name that no other upload of the same answer has."""
    stem, dot, ending = name.rpartition(".")
    if not stem:
        stem, dot, ending = name, "", ""
    number, free = 2, name
    while free in taken:
        free = f"{stem}-{number}{dot}{ending}"
        number += 1
    return free


def _open(root: str, folders: Sequence[str], *, make: bool = False) -> int:
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in folders:
        with _closing(place):
            place = _enter(name, place, make=make)
    return place


def _enter(name: str, above: int, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
    return os.open(name, _DIRECTORY, dir_fd=above)


def _write(name: str, data: bytes, place: int) -> None:
    with _closing(os.open(name, _NEW_FILE, 0o600, dir_fd=place)) as handle:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)


@contextlib.contextmanager
def _closing(handle: int) -> Generator[int]:
    try:
        yield handle
    finally:
        os.close(handle)
