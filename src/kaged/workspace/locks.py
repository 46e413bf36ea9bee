"""`FileLocks`: who may work on which file right now. One for the whole daemon, on its event loop.

Readers share, a mutation is alone. Whoever has to wait longer than five seconds gives up with
`file_busy`. Several files are always taken in the same order, so that no two calls can wait for
each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Final, TypeAlias

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.workspace.errors import FileBusy
from kaged.workspace.path import ProjectPath

WAIT_LIMIT_S: Final = 5.0  # AT-FAIL-12, AT-FAIL-14
PATIENCE_S: Final = 1.0
"""How long readers may pass a waiting mutation; after that they queue behind it."""

MAX_WAITERS: Final = 1000
_LOOK_S: Final = 0.05
"""How often a waiting call looks at the clock, which need not be the loop's."""

LockKey: TypeAlias = "str | ProjectPath"


@dataclass(slots=True, eq=False)
class _Waiter:
    granted: asyncio.Future[None]
    exclusive: bool
    since_s: float


@dataclass(slots=True, eq=False)
class _LockedFile:
    readers: int = 0
    mutating: bool = False
    queue: deque[_Waiter] = field(default_factory=deque[_Waiter])


class FileLocks:
    """Locks by resolved path."""

    def __init__(self, clock: Clock, wait_limit_s: float = WAIT_LIMIT_S) -> None:
        self._clock = clock
        self._wait_limit_s = wait_limit_s
        self._files: dict[str, _LockedFile] = {}

    @asynccontextmanager
    async def reading(self, path: LockKey) -> AsyncGenerator[None]:
        """Keep mutations of a file out while its content is looked at.

        Raises:
            FileBusy: a mutation ran for too long.
        """
        key = _key(path)
        await self._take(key, path, exclusive=False, deadline_s=self._deadline_s())
        try:
            yield
        finally:
            self._give_back(key, exclusive=False)

    @asynccontextmanager
    async def mutating(self, paths: Iterable[LockKey]) -> AsyncGenerator[None]:
        """Keep everybody else off some files; all of them are taken, or none.

        Raises:
            FileBusy: one of them was not free in time.
        """
        wanted = {_key(path): path for path in paths}
        deadline_s = self._deadline_s()
        held: list[str] = []
        try:
            for key in sorted(wanted):
                await self._take(key, wanted[key], exclusive=True, deadline_s=deadline_s)
                held.append(key)
            yield
        finally:
            for key in reversed(held):
                self._give_back(key, exclusive=True)

    def held(self) -> int:
        """Return how many files are in use or waited for, for the daemon's status."""
        return len(self._files)

    def _deadline_s(self) -> float:
        return self._clock.monotonic_s() + self._wait_limit_s

    async def _take(self, key: str, path: LockKey, *, exclusive: bool, deadline_s: float) -> None:
        file = self._files.setdefault(key, _LockedFile())
        if self._free_for(file, exclusive=exclusive):
            _enter(file, exclusive=exclusive)
            return
        if len(file.queue) >= MAX_WAITERS:
            raise FileBusy(_shown(path))
        waiter = _Waiter(
            asyncio.get_running_loop().create_future(), exclusive, self._clock.monotonic_s()
        )
        file.queue.append(waiter)
        try:
            while not waiter.granted.done():
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise FileBusy(_shown(path))
                await asyncio.wait((waiter.granted,), timeout=min(left_s, _LOOK_S))
        except BaseException:
            if waiter.granted.done():
                # Given and cancelled in the same turn of the loop: nobody would give it back.
                self._give_back(key, exclusive=exclusive)
            else:
                file.queue.remove(waiter)
                self._pass_on(key, file)
            raise

    def _free_for(self, file: _LockedFile, *, exclusive: bool) -> bool:
        if exclusive:
            return not (file.mutating or file.readers or file.queue)
        if file.mutating:
            return False
        # Readers need not wait for a mutation that itself waits (AT-FAIL-14), unless it would
        # never get its turn.
        return not file.queue or self._clock.monotonic_s() - file.queue[0].since_s < PATIENCE_S

    def _give_back(self, key: str, *, exclusive: bool) -> None:
        file = self._files[key]
        if exclusive:
            file.mutating = False
        else:
            file.readers -= 1
        self._pass_on(key, file)

    def _pass_on(self, key: str, file: _LockedFile) -> None:
        while file.queue and not file.mutating:
            first = file.queue[0]
            if first.exclusive and file.readers:
                break
            file.queue.popleft()
            _enter(file, exclusive=first.exclusive)
            first.granted.set_result(None)
        if not (file.queue or file.mutating or file.readers):
            self._files.pop(key, None)


def _enter(file: _LockedFile, *, exclusive: bool) -> None:
    if exclusive:
        file.mutating = True
    else:
        file.readers += 1


def _key(path: LockKey) -> str:
    return path if isinstance(path, str) else path.resolved


def _shown(path: LockKey) -> str:
    # An absolute path of the host is nothing for an agent's eyes.
    return path.rpartition("/")[2] if isinstance(path, str) else path.relative
