"""`TreeWatch` and `LookTimer`: the kernel's word, by inotify, that a look at a tree is due now.

It only says when to look. What it misses, or has no room for, the look of every second finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import field
from enum import IntEnum
from typing import Final, Self

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.protected.tree import Parts, ProtectedTree

MAX_WATCHES: Final = 1024
READ_BYTES: Final = 64 * 1024
READ_PAUSE_S: Final = 0.003
SHORTEST_PAUSE_S: Final = 0.005
EARLY_SHARE: Final = 3
"""An early look is followed by a pause of at least so many times its own length."""

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_TO, _CREATE = 0x80, 0x100
_OVERFLOW, _IGNORED, _IS_DIR = 0x4000, 0x8000, 0x4000_0000
_ONLY_DIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x0100_0000, 0x0200_0000, 0x0400_0000
_HAPPENS: Final = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_TO | _CREATE
_MASK: Final = _HAPPENS | _ONLY_DIR | _DONT_FOLLOW | _EXCL_UNLINK
_HEADER: Final = struct.Struct("iIII")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_OWN_PREFIX: Final = ".kaged-"  # what is about to be put in place of something


class Urgency(IntEnum):
    """How soon a look is due: not at all, with the next folders, in a moment, now."""

    NONE = 0
    FOLDERS = 1
    BEGUN = 2
    NOW = 3


_DELAY_S: Final = {Urgency.FOLDERS: 0.05, Urgency.BEGUN: 0.005, Urgency.NOW: 0.0}


@dataclass(slots=True)
class TreeWatch:
    """Watches on the folders of one tree that matter most, as many as there is room for."""

    fd: int
    _tree: ProtectedTree
    _by_number: dict[int, Parts]
    _numbers: dict[Parts, int]
    _looks: int = -1
    _copies: set[int] = field(default_factory=set[int])

    @classmethod
    def open(cls, tree: ProtectedTree) -> Self | None:
        """Begin to watch; None where the kernel gives no more. Blocks."""
        fd = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        return None if fd < 0 else cls(fd, tree, {}, {})

    def add_copies(self, folders: Iterable[str]) -> None:
        """Watch the folders in which guests write copies, too. Blocks."""
        for path in folders:
            number = _LIBC.inotify_add_watch(self.fd, os.fsencode(path), _MASK)
            if number >= 0:
                self._copies.add(number)

    def follow(self) -> bool:
        """Watch the folders that the last look found; return whether any is new. Blocks."""
        if self._looks == self._tree.looks:
            return False
        self._looks = self._tree.looks
        wanted = self._tree.nearest_folders(MAX_WATCHES)
        for parts in self._numbers.keys() - set(wanted):
            number = self._numbers.pop(parts)
            self._by_number.pop(number, None)
            _LIBC.inotify_rm_watch(self.fd, number)
        fresh = False
        for parts in wanted:
            if parts in self._numbers:
                continue
            path = os.fsencode(self._tree.path(parts))
            number = _LIBC.inotify_add_watch(self.fd, path, _MASK)
            if number >= 0:
                fresh = True
                self._numbers[parts] = number
                self._by_number[number] = parts
        return fresh

    def read(self) -> Urgency:
        """Return how soon a look is due for what has happened. Never blocks."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return Urgency.NONE
        except OSError:
            return Urgency.NOW
        return max((self._judge(*one) for one in _events(data)), default=Urgency.NONE)

    def close(self) -> None:
        """End all watches. Safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _judge(self, number: int, mask: int, name: str) -> Urgency:
        if mask & _OVERFLOW:
            return Urgency.NOW
        if mask & _IGNORED:  # the folder is gone; its number may be given again
            parts = self._by_number.pop(number, None)
            if parts is not None and self._numbers.get(parts) == number:
                del self._numbers[parts]
            return Urgency.NONE
        parts = self._by_number.get(number)
        if name.startswith(_OWN_PREFIX):
            return Urgency.NONE
        if number in self._copies:
            return Urgency.NOW if mask & (_CLOSE_WRITE | _MOVED_TO) else Urgency.NONE
        if parts is None:
            return Urgency.NONE
        if not self._tree.name_matters(parts, name):
            is_new = mask & _IS_DIR and mask & (_CREATE | _MOVED_TO)
            return Urgency.FOLDERS if is_new else Urgency.NONE
        return Urgency.NOW if mask & (_CLOSE_WRITE | _MOVED_TO) else Urgency.BEGUN


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at + _HEADER.size <= len(data):
        number, mask, _, size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        yield number, mask, os.fsdecode(data[at : at + size].rstrip(b"\0"))
        at += size


class LookTimer:
    """Says when the next look at a tree is due: every so often, and soon after an event."""

    def __init__(self, watch: TreeWatch | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._woken = asyncio.Event()
        self._due_s = self._loop.time()
        self._not_before_s = 0.0
        self._paused: asyncio.TimerHandle | None = None
        if watch is not None:
            self._loop.add_reader(watch.fd, self._read)

    async def wait(self, until_s: float) -> bool:
        """Wait until a look is due, at the latest at a time of the loop; return whether early."""
        while (now_s := self._loop.time()) < (
            next_s := min(until_s, max(self._due_s, self._not_before_s))
        ):
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s - now_s):
                    await self._woken.wait()
        self._due_s = math.inf
        return now_s < until_s

    def looked(self, took_s: float) -> None:
        """Delay the next early look, however much happens."""
        self._not_before_s = self._loop.time() + max(SHORTEST_PAUSE_S, took_s * EARLY_SHARE)

    def ask(self, urgency: Urgency) -> None:
        """Request a look, as soon as its urgency says."""
        if urgency is not Urgency.NONE:
            self._due_s = min(self._due_s, self._loop.time() + _DELAY_S[urgency])
            self._woken.set()

    def close(self) -> None:
        """Stop reading the watch, and end it."""
        if self._paused is not None:
            self._paused.cancel()
        if self._watch is not None and self._watch.fd >= 0:
            self._loop.remove_reader(self._watch.fd)
            self._watch.close()

    def _read(self) -> None:
        if self._watch is None:
            return
        self.ask(self._watch.read())
        # A guest that writes all the time must not keep the loop busy.
        self._loop.remove_reader(self._watch.fd)
        self._paused = self._loop.call_later(READ_PAUSE_S, self._listen)

    def _listen(self) -> None:
        if self._watch is not None and self._watch.fd >= 0:
            self._loop.add_reader(self._watch.fd, self._read)
