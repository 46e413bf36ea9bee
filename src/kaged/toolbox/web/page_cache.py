"""`PageCache`: pages that a session has read, for a quarter of an hour."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from kaged.base import Clock
from kaged.kernel.net import NetTarget

KEPT_S: Final = 15 * 60.0
MAX_PAGES: Final = 64
MAX_CHARS: Final = 16 * 1024 * 1024


class CacheKey(NamedTuple):
    """Whose page it is: another agent, session or set of grants has its own."""

    session_id: str
    caller: str
    grants: tuple[NetTarget, ...]
    url: str
    format: str


class ShownPage(NamedTuple):
    """A page as it is shown. `text` is None for what is no text."""

    url: str
    mime: str
    title: str
    text: str | None
    size: int | None
    complete: bool


class PageCache:
    """Keeps the pages that were asked for last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: OrderedDict[CacheKey, tuple[float, ShownPage]] = OrderedDict()
        self._chars = 0

    def get(self, key: CacheKey) -> ShownPage | None:
        """Return a page that is not too old."""
        found = self._pages.get(key)
        if found is None:
            return None
        if self._clock.monotonic_s() - found[0] > KEPT_S:
            self._drop(key)
            return None
        self._pages.move_to_end(key)
        return found[1]

    def put(self, key: CacheKey, page: ShownPage) -> None:
        """Keep a page, instead of those that nobody has asked for longest."""
        self._drop(key)
        self._pages[key] = (self._clock.monotonic_s(), page)
        self._chars += len(page.text or "")
        while len(self._pages) > MAX_PAGES or self._chars > MAX_CHARS:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: CacheKey) -> None:
        found = self._pages.pop(key, None)
        if found is not None:
            self._chars -= len(found[1].text or "")
