"""`read_folder`: a skill's folder as files with one digest, read without ever leaving it.

An agent may be able to write there while we read. So the folder is opened once and everything is
reached from that handle, no link is followed, and what is hashed is what was read.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from kaged.base.file_stamp import full_stamp, is_settled
from kaged.base.lazy_dataclass import dataclass
from kaged.config.problems import Problem
from kaged.config.skill_file import SKILL_FILE, SKILL_FILE_LIMIT_BYTES, SkillFileInvalid

FILES_LIMIT: Final = 2000
FOLDER_LIMIT_BYTES: Final = 32 * 1024 * 1024
DEPTH_LIMIT: Final = 12
_LEFT_OUT: Final = frozenset({".git", "__pycache__"})
"""Folders that are no part of a skill: what version control and interpreters leave behind."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CHUNK: Final = 256 * 1024


Signature = tuple[tuple[object, ...], ...]
"""What tells that nothing was written since; the kernel sets the times of change itself."""


@dataclass(frozen=True, slots=True)
class BundledFile:
    """One file of a skill; `path` is relative to its folder."""

    path: str
    size: int
    executable: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """A folder as it was when it was read. `text` is that of its `SKILL.md`."""

    text: str
    files: tuple[BundledFile, ...]
    signature: Signature

    @property
    def digest(self) -> str:
        """The SHA-256 over every file: its path, its content, and whether it can be executed."""
        seal = hashlib.sha256()
        for one in self.files:
            seal.update(f"{one.path}\0{int(one.executable)}\0{one.sha256}\n".encode())
        return seal.hexdigest()


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    info: os.stat_result
    link: str | None = None


def read_folder(
    folder: Path,
    inside: Path,
    known: SkillFolder | None = None,
    keep: Callable[[BundledFile, bytes], None] | None = None,
) -> SkillFolder:
    """Read a skill's folder, which must really lie below `inside`. Blocks on the disk.

    `known` is returned when nothing was written since it was read. `keep` is given the bytes of
    every file, which are those that the digest is made of.

    Raises:
        SkillFileInvalid: it is too large, holds something that is no file, a link leads out of it,
            or its `SKILL.md` is missing or no text.
    """
    with _opened(folder, inside) as handle:
        entries = sorted(_walk(handle, folder), key=lambda one: one.path)
        signature = tuple(_mark(one) for one in entries)
        if known is not None and known.signature == signature and keep is None:
            return known
        if not all(is_settled(one.info.st_ctime_ns) for one in entries):
            signature = ((object(),),)  # equal to no other: the next one reads again
        plain = {one.path: one for one in entries if one.link is None}
        files: list[BundledFile] = []
        text = b""
        left = FOLDER_LIMIT_BYTES
        for one in entries:
            source = one if one.link is None else _target(one, plain, folder)
            data = _content(handle, source, left, folder)
            left -= len(data)
            executable = bool(source.info.st_mode & stat.S_IXUSR)
            made = BundledFile(one.path, len(data), executable, hashlib.sha256(data).hexdigest())
            files.append(made)
            if one.path == SKILL_FILE:
                text = data
            if keep is not None:
                keep(made, data)
    if SKILL_FILE not in plain:
        _refuse(folder, f"there is no {SKILL_FILE}", "a skill is a folder with that file")
    return SkillFolder(_text(text, folder), tuple(files), signature)


@contextmanager
def _opened(folder: Path, inside: Path) -> Generator[int]:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _refuse(folder, f"the folder cannot be opened: {error.strerror}")
    try:
        # Where the handle really is, whatever the path leads to by now.
        real = Path(f"/proc/self/fd/{handle}").readlink()
        if not real.is_relative_to(os.path.realpath(inside)):
            _refuse(
                folder, "the folder is a link that leads elsewhere", "put the skill itself there"
            )
        yield handle
    except OSError as error:
        _refuse(folder, f"the folder cannot be read: {error.strerror}")
    finally:
        os.close(handle)


def _walk(handle: int, folder: Path) -> Iterator[_Entry]:
    count = 0
    for top, folders, names, at in os.fwalk(".", dir_fd=handle, follow_symlinks=False):
        folders[:] = [one for one in folders if one not in _LEFT_OUT]
        below = posixpath.normpath(top)
        prefix = "" if below == "." else f"{below}/"
        if prefix.count("/") > DEPTH_LIMIT:
            _refuse(folder, f"folders are nested more than {DEPTH_LIMIT} deep")
        linked = [one for one in folders if _is_link(one, at)]
        folders[:] = [one for one in folders if one not in linked]
        for name in (*names, *linked):
            count += 1
            if count > FILES_LIMIT:
                _refuse(folder, f"it holds more than {FILES_LIMIT} files")
            info = os.stat(name, dir_fd=at, follow_symlinks=False)
            path = f"{prefix}{name}"
            if stat.S_ISLNK(info.st_mode):
                target = posixpath.normpath(prefix + os.readlink(name, dir_fd=at))
                yield _Entry(path, info, target)
            elif stat.S_ISREG(info.st_mode):
                yield _Entry(path, info)
            else:
                _refuse(folder, f"{path} is neither a file nor a folder", "remove it")


def _is_link(name: str, at: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)


def _mark(entry: _Entry) -> tuple[object, ...]:
    return (entry.path, entry.link, *full_stamp(entry.info))


def _target(entry: _Entry, plain: dict[str, _Entry], folder: Path) -> _Entry:
    found = plain.get(entry.link or "")
    if found is None:
        _refuse(
            folder,
            f"{entry.path} is a link that leads to no file of this skill",
            "put a copy of the file there",
        )
    return found


def _content(handle: int, entry: _Entry, left: int, folder: Path) -> bytes:
    """Read one file from the folder's handle; each step of its path is a folder and no link."""
    *above, name = entry.path.split("/")
    at = os.dup(handle)
    try:
        for step in above:
            below = os.open(step, _READ | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        file = os.open(name, _READ, dir_fd=at)
    finally:
        os.close(at)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            _refuse(folder, f"{entry.path} is no file any more")
        chunks: list[bytes] = []
        while chunk := os.read(file, _CHUNK):
            chunks.append(chunk)
            left -= len(chunk)
            if left < 0:
                _refuse(folder, f"it is larger than {FOLDER_LIMIT_BYTES // 1024 // 1024} MB")
        return b"".join(chunks)
    finally:
        os.close(file)


def _text(data: bytes, folder: Path) -> str:
    if len(data) > SKILL_FILE_LIMIT_BYTES:
        limit = f"{SKILL_FILE_LIMIT_BYTES // 1024} KB"
        _refuse(folder, f"{SKILL_FILE} is larger than {limit}", "move parts into files beside it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        _refuse(folder, f"{SKILL_FILE} is not UTF-8", "save it as UTF-8", line)


def _refuse(folder: Path, message: str, fix: str = "", line: int | None = None) -> NoReturn:
    file = str(folder / SKILL_FILE)
    problem = Problem(file, line, None, "", message, fix, code=SkillFileInvalid.code)
    raise SkillFileInvalid(problem)
