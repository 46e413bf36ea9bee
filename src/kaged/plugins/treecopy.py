"""`copy_tree`, `read_tree`: a plugin's directory, walked without trusting it. Blocks on the disk.

No link is ever followed, and every file is opened relative to the directory that was looked at, so
that a tree that changes underneath cannot lead the copy elsewhere. Both walks give the same digest
for the same content: kinds, names, the executable bit, link targets and bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.errors import TreeRefused

NAMED_FILES: Final = 500
"""Up to how many files are remembered by name, to say later which of them changed."""

_CHUNK_BYTES: Final = 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LEFT_OUT: Final = ".git"
"""Version control data at the top of a plugin, which is no part of it."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """How large a plugin may be."""

    entries: int = 50_000
    size_bytes: int = 512 * 1024 * 1024
    depth: int = 64
    link_chars: int = 1024


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What a walk found. `files` has by path what stands for the content; nothing for very many."""

    digest: str
    entries: int
    size_bytes: int
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def read_tree(source: Path, limits: TreeLimits | None = None) -> TreeFacts:
    """Walk a directory and return its digest.

    Raises:
        TreeRefused: it holds something that is never copied, or is too large.
    """
    return _walk(source, None, limits)


def copy_tree(source: Path, target: Path, limits: TreeLimits | None = None) -> TreeFacts:
    """Copy a directory to `target`, which must not exist, and flush it to the disk.

    Directories get mode 0755, files 0644, or 0755 if their owner may run them. Links inside the
    tree stay links. What was copied before a failure is left for the caller to remove.

    Raises:
        TreeRefused: as for `read_tree`.
        OSError: the disk is full, permission is missing and the like.
    """
    target.mkdir(mode=0o755)
    return _walk(source, target, limits)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _walk(source: Path, target: Path | None, limits: TreeLimits | None) -> TreeFacts:
    walk = _TreeWalk(limits or TreeLimits())
    try:
        with _opened(source, _DIRECTORY) as handle:
            walk.directory(handle, target, ())
    except RecursionError:  # pragma: no cover - the depth limit is far below Python's
        _refuse("/", "is nested too deeply")
    files = walk.files if len(walk.files) <= NAMED_FILES else {}
    return TreeFacts(walk.digest.hexdigest(), walk.entries, walk.size_bytes, files)


class _TreeWalk:
    def __init__(self, limits: TreeLimits) -> None:
        self.digest = hashlib.blake2b(digest_size=32)
        self.entries = 0
        self.size_bytes = 0
        self.files: dict[str, str] = {}
        self._limits = limits

    def directory(self, handle: int, target: Path | None, parts: tuple[str, ...]) -> None:
        for name in sorted(os.listdir(handle), key=os.fsencode):
            if not parts and name == _LEFT_OUT:
                continue
            self._entry(handle, name, target, (*parts, name))
        if target is not None:
            target.chmod(0o755)
            sync_directory(target)

    def _entry(self, parent: int, name: str, target: Path | None, parts: tuple[str, ...]) -> None:
        shown = "/".join(parts)
        self.entries += 1
        if self.entries > self._limits.entries:
            _refuse(shown, f"is one too many: a plugin has at most {self._limits.entries} entries")
        if len(parts) > self._limits.depth:
            _refuse(shown, f"lies more than {self._limits.depth} directories deep")
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        below = None if target is None else target / name
        if stat.S_ISDIR(info.st_mode):
            self._note("d", shown)
            if below is not None:
                below.mkdir(mode=0o755)
            with _opened(name, _DIRECTORY, parent) as handle:
                self.directory(handle, below, parts)
        elif stat.S_ISLNK(info.st_mode):
            self._link(parent, name, below, parts)
        elif stat.S_ISREG(info.st_mode):
            self._file(parent, name, below, shown)
        else:
            _refuse(shown, f"is {_kind(info.st_mode)}")

    def _link(self, parent: int, name: str, below: Path | None, parts: tuple[str, ...]) -> None:
        shown = "/".join(parts)
        leads_to = os.readlink(name, dir_fd=parent)
        if len(leads_to) > self._limits.link_chars or not _stays(leads_to, len(parts) - 1):
            _refuse(shown, f"is a link that leaves the plugin's directory: {leads_to[:80]!r}")
        self._note("l", shown, leads_to)
        self._name(shown, f"-> {leads_to}")
        if below is not None:
            below.symlink_to(leads_to)

    def _file(self, parent: int, name: str, below: Path | None, shown: str) -> None:
        with _opened(name, _FILE, parent) as handle:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                _refuse(shown, f"is {_kind(info.st_mode)}")
            if info.st_mode & (stat.S_ISUID | stat.S_ISGID):
                _refuse(shown, "has the setuid or setgid bit", "chmod u-s,g-s it")
            runs = bool(info.st_mode & stat.S_IXUSR)
            content = hashlib.blake2b(digest_size=32)
            if below is None:
                for chunk in self._chunks(handle, shown):
                    content.update(chunk)
            else:
                mode = 0o755 if runs else 0o644
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with _opened(below, flags) as out:
                    for chunk in self._chunks(handle, shown):
                        content.update(chunk)
                        _write_all(out, chunk)
                    os.fchmod(out, mode)
                    os.fsync(out)
        kind = "x" if runs else "f"
        self._note(kind, shown, content.hexdigest())
        self._name(shown, f"{kind}{content.hexdigest()[:32]}")

    def _chunks(self, handle: int, shown: str) -> Iterator[bytes]:
        while chunk := os.read(handle, _CHUNK_BYTES):
            self.size_bytes += len(chunk)
            if self.size_bytes > self._limits.size_bytes:
                limit_mb = self._limits.size_bytes // (1024 * 1024)
                _refuse(shown, f"makes the plugin larger than {limit_mb} MiB")
            yield chunk

    def _name(self, shown: str, content: str) -> None:
        if len(self.files) <= NAMED_FILES:
            self.files[os.fsencode(shown).decode("utf-8", "replace")] = content

    def _note(self, *fields: str) -> None:
        for one in fields:
            data = os.fsencode(one)
            self.digest.update(len(data).to_bytes(8, "big"))
            self.digest.update(data)


@contextmanager
def _opened(path: str | Path, flags: int, dir_fd: int | None = None) -> Generator[int]:
    handle = os.open(path, flags, 0o600, dir_fd=dir_fd)
    try:
        yield handle
    finally:
        os.close(handle)


def _stays(leads_to: str, depth: int) -> bool:
    """Return whether a link in a directory `depth` levels down stays in the tree.

    `..` may stand at the beginning only: behind a name it could climb out of wherever another link
    leads. By that rule no chain of links leaves, either.
    """
    if leads_to.startswith("/"):
        return False
    steps = [step for step in leads_to.split("/") if step not in {"", "."}]
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    return ups <= depth and ".." not in steps[ups:]


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "no file, directory or link")


def _refuse(shown: str, why: str, fix: str = "remove it from the plugin") -> NoReturn:
    raise TreeRefused(f"{shown} {why}", fix=fix, path=shown)
