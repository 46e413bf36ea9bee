"""`ProjectWatch`: what changed on disk behind the tools' backs, as the kernel tells it.

Servers were promised that somebody watches the project's files: a shell command, a version control
system or a person changes files that no tool ever touched. The kernel queues every change at once,
so reading its queue before a question misses nothing. What the kernel does not watch for us is
compared with what it was, before each question too; see `FolderPoll`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, field
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.toolbox.lsp.languages import Languages
from kaged.toolbox.lsp.polling import CHANGED, CREATED, DELETED, FolderPoll

MAX_FOLDERS: Final = 8192
MAX_PENDING: Final = 5000
MAX_DEPTH: Final = 64
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x8, 0x40, 0x80
_CREATE, _DELETE = 0x100, 0x200
_OVERFLOW, _IGNORED, _ONLYDIR, _DONT_FOLLOW, _IS_DIR = 0x4000, 0x8000, 1 << 24, 1 << 25, 1 << 30
_MASK: Final = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR | _DONT_FOLLOW
_HEAD: Final = struct.Struct("iIII")
_CHUNK: Final = 256 * 1024

_log = get_logger(__name__)


@dataclass(eq=False)
class ProjectWatch:
    """Watches the folders of one project while it has language servers.

    `skips` says which folders' names are not worth it. The kernel watches up to `max_folders`,
    those near the root first; folders beyond, or all of them without inotify, are polled.
    """

    _root: str
    _languages: Languages
    _skips: Callable[[str], bool]
    _: KW_ONLY
    max_folders: int = MAX_FOLDERS
    max_pending: int = MAX_PENDING
    _fd: int = -1
    _loop: asyncio.AbstractEventLoop | None = None
    _folders: dict[int, str] = field(default_factory=dict)
    _pending: dict[str, dict[str, int]] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    begun: bool = False  # it watches, or has found that it cannot
    _complete: bool = False  # every folder has been gone through: what is queued can be read
    _closed: bool = False

    def __post_init__(self) -> None:
        """Begin with nothing to poll."""
        self._poll = FolderPoll(self._languages, self._skips)

    def begin(self, kept: Collection[str] | None = None) -> None:
        """Begin to watch; the second time does nothing. Runs in a thread.

        `kept` are the folders that git does not ignore. Ignored ones are watched with what they
        leave of the limits: programs write generated code there, which servers read.
        """
        if self.begun:
            return
        self.begun = True
        self._fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            _log.info("lsp.no_watch", error=os.strerror(ctypes.get_errno()))
        self._add(self._root, 0, self._poll.add, kept)
        self._complete = True
        if self._closed:  # meanwhile
            self.close()

    def follow(self) -> None:
        """Empty the kernel's queue as it fills, so that it never overflows. On the event loop."""
        if self._fd >= 0 and self._loop is None and not self._closed:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._fd, self.drain)

    def poll(self) -> list[tuple[str, int]]:
        """Return what changed in the folders that the kernel does not watch. Runs in a thread."""
        return self._poll.changes()

    def note(self, changes: Iterable[tuple[str, int]]) -> None:
        """Take in what polling has found. On the event loop."""
        for path, kind in changes:
            self._note(path, kind)

    def drain(self) -> None:
        """Take in what the kernel has queued. On the event loop."""
        if self._fd < 0 or not self._complete:
            return
        while True:
            try:
                data = os.read(self._fd, _CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            at = 0
            while at < len(data):
                number, mask, _, size = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                self._hear(number, mask, os.fsdecode(data[at : at + size].rstrip(b"\0")))
                at += size

    def take(self, language: str) -> dict[str, int]:
        """Return what has changed since the last time, of files of a language: path and kind."""
        self.drain()
        return self._pending.pop(language, {})

    def missed(self, language: str) -> bool:
        """Return whether more has changed than could be kept in mind since `caught_up`."""
        self.drain()
        return language in self._lost

    def caught_up(self, language: str) -> None:
        """Forget changes of files of a language: its server has just read all of them."""
        self.drain()
        self._lost.discard(language)
        self._pending.pop(language, None)

    def forget(self, path: str) -> None:
        """Drop what is known of a file: a tool has changed it, and servers were told."""
        self.drain()
        self._poll.forget(path)
        found = self._languages.of(path)
        if found is not None:
            self._pending.get(found.language, {}).pop(path, None)

    def close(self) -> None:
        """Stop watching."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.begun = self._closed = True
        self._folders.clear()
        self._pending.clear()
        self._poll.close()

    # -- own -------------------------------------------------------------------------------------

    def _add(
        self,
        top: str,
        depth: int,
        missed: Callable[[str], None],
        kept: Collection[str] | None = None,
    ) -> None:
        """Watch a folder and all below it, what is near first and what is ignored last.

        `missed` is called for each folder that the kernel does not watch.
        """
        near, last = deque([(top, depth)]), deque[tuple[str, int]]()
        while near or last:
            folder, depth = near.popleft() if near else last.popleft()
            if not self._watch_one(folder):
                missed(folder)
            for one in self._below(folder) if depth < MAX_DEPTH else ():
                line = near if kept is None or one in kept else last
                line.append((one, depth + 1))

    def _watch_one(self, folder: str) -> bool:
        if self._fd < 0 or len(self._folders) >= self.max_folders:
            return False
        number = _libc().inotify_add_watch(self._fd, os.fsencode(folder), _MASK)
        if number >= 0:
            self._folders[number] = folder
        return number >= 0

    def _below(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(
                    one.path
                    for one in entries
                    if one.is_dir(follow_symlinks=False) and not self._skips(one.name)
                )
        except OSError:
            return []  # gone meanwhile

    def _hear(self, number: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            _log.warning("lsp.watch_overflowed", root=self._root)
            self._lost.update(self._languages.commands)
            return
        if mask & _IGNORED:
            self._folders.pop(number, None)
            return
        folder = self._folders.get(number)
        if folder is None or not name:
            return
        path = f"{folder}/{name}"
        if mask & _IS_DIR:
            if mask & (_CREATE | _MOVED_TO) and not self._skips(name):
                self._new_folder(path)
            return
        if mask & (_DELETE | _MOVED_FROM):
            self._note(path, DELETED)
        elif mask & _CREATE:
            self._note(path, CREATED)
        elif mask & (_CLOSE_WRITE | _MOVED_TO):
            self._note(path, CHANGED)

    def _new_folder(self, folder: str) -> None:
        """Watch a folder that has appeared; what is in it already is new too."""
        self._add(folder, folder.count("/") - self._root.count("/"), self._poll.add_new)
        watched = [one for one in self._folders.values() if f"{one}/".startswith(f"{folder}/")]
        for one in watched:
            try:
                with os.scandir(one) as entries:
                    names = [each.path for each in entries if each.is_file(follow_symlinks=False)]
            except OSError:
                continue
            for path in names:
                self._note(path, CREATED)

    def _note(self, path: str, kind: int) -> None:
        found = self._languages.of(path)
        if found is None:
            return
        known = self._pending.setdefault(found.language, {})
        if kind == CHANGED and known.get(path) == CREATED:
            return
        if path in known or len(known) < self.max_pending:
            known[path] = kind
        else:
            self._lost.add(found.language)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
