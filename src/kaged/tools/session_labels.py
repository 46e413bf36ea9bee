"""`SessionLabels`: the labels of the data in each session. They only grow.

Whatever a model says or does may come from anything that it has read. A label that the host or a
policy puts on a result therefore stays with the session: later calls of all its agents carry it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass

UNTRUSTED: Final = "untrusted"
"""On results that somebody outside may have written: of outside MCP servers and of accounts."""

MAX_KNOWN: Final = 10_000

_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class NewLabels:
    """Labels that a session did not have before; `source` is the call that brought them."""

    session_id: str
    labels: tuple[str, ...]
    source: str
    run_id: str | None = None


Load: TypeAlias = Callable[[str], Awaitable[Iterable[str]]]
Keep: TypeAlias = Callable[[NewLabels], Awaitable[None]]


class SessionLabels:
    """Reads and adds labels. What `add` took is durable when it returns.

    `load` reads the labels of a session from the store, `keep` writes new ones. The sessions asked
    for last are remembered.
    """

    def __init__(self, load: Load, keep: Keep) -> None:
        self._load = load
        self._keep = keep
        self._known: OrderedDict[str, frozenset[str]] = OrderedDict()

    async def of(self, session_id: str) -> frozenset[str]:
        """Return the labels of a session; none for one that the store does not know."""
        found = self._known.get(session_id)
        if found is None:
            loaded = frozenset(await self._load(session_id))
            # Another call may have added some while the store was read.
            found = self._remember(session_id, loaded)
        return found

    async def add(
        self, session_id: str, labels: Iterable[str], *, source: str, run_id: str | None = None
    ) -> None:
        """Put labels on the data of a session. Raises KagedError when they cannot be kept."""
        new = frozenset(labels) - await self.of(session_id)
        if new:
            await self._keep(NewLabels(session_id, tuple(sorted(new)), source, run_id))
            self._remember(session_id, new)

    def keeper(
        self, session_id: str, *, source: str, run_id: str | None = None
    ) -> Callable[[frozenset[str]], Awaitable[None]]:
        """Return `add` for one call."""

        async def keep(labels: frozenset[str]) -> None:
            await self.add(session_id, labels, source=source, run_id=run_id)

        return keep

    def _remember(self, session_id: str, labels: frozenset[str]) -> frozenset[str]:
        self._known[session_id] = self._known.get(session_id, _NONE) | labels
        self._known.move_to_end(session_id)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return self._known[session_id]
