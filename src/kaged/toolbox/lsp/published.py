"""`PublishedDiagnostics`: what a server pushed, by file, with the version that it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass

QUIET_S: Final = 0.25
"""A server that names no version has said all it will once it is quiet for so long."""

YOUNG_S: Final = 3.0
FIRST_QUIET_S: Final = 1.0
"""An empty list from a server that has only just started is not the last word yet."""

MAX_FILES: Final = 5000
MAX_ITEMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Published:
    """The newest list for one file. `serial` grows with every list of any file."""

    items: tuple[JsonObject, ...]
    version: int | None
    serial: int
    at_s: float


class PublishedDiagnostics:
    """Keeps the newest list per file and lets callers wait for one that is about their text."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born_s = clock.monotonic_s()
        self._files: dict[str, Published] = {}
        self._serial = 0
        self._ended = False
        self._news = asyncio.Event()

    @property
    def serial(self) -> int:
        """The number of the newest list: note it before a change, to know what came after."""
        return self._serial

    def get(self, uri: str) -> Published | None:
        """Return the newest list for a file."""
        return self._files.get(uri)

    def take(self, params: JsonValue) -> None:
        """Take a list that the server pushed; what is no list is dropped."""
        if not isinstance(params, dict):
            return
        uri, items, version = params.get("uri"), params.get("diagnostics"), params.get("version")
        if not isinstance(uri, str) or not isinstance(items, list):
            return
        if uri not in self._files and len(self._files) >= MAX_FILES:
            self._files.pop(next(iter(self._files)))
        self._serial += 1
        self._files[uri] = Published(
            tuple(cast("JsonObject", one) for one in items[:MAX_ITEMS] if isinstance(one, dict)),
            version if type(version) is int else None,
            self._serial,
            self._clock.monotonic_s(),
        )
        self._news.set()

    def forget(self, uri: str) -> None:
        """Drop what is known of a file that was closed."""
        self._files.pop(uri, None)

    def ended(self) -> None:
        """Release everybody who waits for a server that is gone."""
        self._ended = True
        self._news.set()

    def nudge(self) -> None:
        """Let those who wait look again whether they still need to."""
        self._news.set()

    async def about(
        self, uri: str, version: int, after: int, limit_s: float, enough: Callable[[], bool]
    ) -> tuple[JsonObject, ...] | None:
        """Wait for the list that is about this version of a file; None when none came in time.

        A list without a version counts when it came after serial `after` and the server then kept
        quiet for a moment. When `enough` turns true nobody waits any more.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await self._wait(uri, version, after, enough)
        except TimeoutError:
            return None

    async def renewed(self, uri: str, after: int, limit_s: float) -> tuple[JsonObject, ...] | None:
        """Wait for a list that came after serial `after`; None when there was none in time."""
        try:
            async with asyncio.timeout(limit_s):
                while not self._ended:
                    found = self._files.get(uri)
                    self._news.clear()
                    if found is not None and found.serial > after:
                        return found.items
                    await self._news.wait()
        except TimeoutError:
            return None
        return None

    async def _wait(
        self, uri: str, version: int, after: int, enough: Callable[[], bool]
    ) -> tuple[JsonObject, ...] | None:
        while not self._ended and not enough():
            found = self._files.get(uri)
            self._news.clear()
            if found is not None and found.version == version and not self._provisional(found):
                return found.items
            if found is None or found.serial <= after or found.version not in (None, version):
                await self._news.wait()
                continue
            quiet_s = FIRST_QUIET_S if self._provisional(found) else QUIET_S
            try:
                async with asyncio.timeout(quiet_s):
                    await self._news.wait()
            except TimeoutError:
                return found.items
        return None

    def _provisional(self, found: Published) -> bool:
        return not found.items and found.at_s - self._born_s < YOUNG_S
