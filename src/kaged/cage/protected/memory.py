"""What a daemon that is killed leaves for the next one: the trees that guests were writing to.

One file per tree, there while a cage runs on it, with what lay in the protected places before.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.protected.files import Content

MAX_FILE_BYTES: Final = 64 * 1024
MAX_TOTAL_BYTES: Final = 4 * 1024 * 1024


class KeptFile(msgspec.Struct, frozen=True):
    """One protected file: its path below the root, what it was, and its content where it is small.

    `digest` is empty for a configuration file, which is judged by its content.
    """

    path: str
    digest: str
    mode: int
    data: str | None


class KeptTree(msgspec.Struct, frozen=True):
    """The protected places of one tree before the guests began."""

    root: str
    owner: str
    files: list[KeptFile]


@dataclass(frozen=True, slots=True)
class TreeMemory:
    """The files of all trees, in one folder of the daemon's."""

    folder: Path

    def keep(self, tree: KeptTree) -> None:
        """Write a tree down, in one step. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._place(tree.root)
        fresh = place.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(tree))
        fresh.replace(place)

    def forget(self, root: str) -> None:
        """Remove a tree's file."""
        with contextlib.suppress(OSError):
            self._place(root).unlink()

    def left(self) -> Iterator[KeptTree]:
        """Yield the trees whose daemon has ended without putting them in order; each once."""
        for place in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                tree = msgspec.json.decode(place.read_bytes(), type=KeptTree)
                if not _lives(tree.owner):
                    yield tree
                    place.unlink()

    def _place(self, root: str) -> Path:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        return self.folder / f"{name}-{os.getpid()}.json"


def this_process() -> str:
    """Return what names this process among all that have its number in turn."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def _lives(owner: str) -> bool:
    pid, _, started = owner.partition(":")
    return pid.isdigit() and started != "" and _started(int(pid)) == started


def _started(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def kept_files(files: Iterable[tuple[str, str, Content]]) -> list[KeptFile]:
    """Return files as they are written down; large ones by their digest alone."""
    room = MAX_TOTAL_BYTES
    kept: list[KeptFile] = []
    for path, digest, content in files:
        data = content.data
        if data is not None and (len(data) > MAX_FILE_BYTES or len(data) > room):
            data = None
        room -= len(data or b"")
        text = None if data is None else base64.b64encode(data).decode("ascii")
        kept.append(KeptFile(path, digest, content.mode, text))
    return kept


def content_of(file: KeptFile) -> Content:
    """Return the content that was written down."""
    data = None if file.data is None else base64.b64decode(file.data)
    return Content(data, file.mode)
