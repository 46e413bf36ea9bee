"""`VendorModel`: one attempt at a time on a vendor's server, or on any that speaks as OpenAI does.

The library behind it is large, so it is loaded when the model is first asked, off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from kaged.base import Clock
from kaged.config.localconfig import ModelEntry
from kaged.models.retrying import AttemptEvent
from kaged.models.turn import ModelRequest, Usage

if TYPE_CHECKING:
    from kaged.models.vendor_talk import VendorTalk

DEFAULT_CONTEXT_TOKENS: Final = 128_000


class VendorModel:
    """A model on a server, behind an alias."""

    def __init__(self, alias: str, entry: ModelEntry, *, clock: Clock) -> None:
        self.alias = alias
        self._entry = entry
        self._clock = clock
        self._loading = asyncio.Lock()
        self._talk: VendorTalk | None = None

    @property
    def context_tokens(self) -> int:
        """How many tokens its window holds: as configured, as published, or a common size.

        What is published is known once the model has been asked.
        """
        known = None if self._talk is None else self._talk.known_tokens
        return self._entry.context_window or known or DEFAULT_CONTEXT_TOKENS

    async def attempt(self, request: ModelRequest, number: int) -> AsyncGenerator[AttemptEvent]:
        """Ask the server once; leaving the iteration closes the connection.

        Raises:
            ModelError: the server did not answer, or not with an answer.
        """
        async with self._loading:
            if self._talk is None:
                self._talk = await asyncio.to_thread(self._load)
        async with aclosing(self._talk.ask(request)) as events:
            async for event in events:
                yield event

    def priced(self, usage: Usage) -> Usage:
        """Add what an unfinished answer costs, if that is known."""
        return usage if self._talk is None else self._talk.priced(usage)

    async def close(self) -> None:
        """Close the connections."""
        talk, self._talk = self._talk, None
        if talk is not None:
            await talk.close()

    def _load(self) -> VendorTalk:
        from kaged.models.vendor_talk import VendorTalk  # noqa: PLC0415 - takes a second to load

        return VendorTalk(self.alias, self._entry, clock=self._clock)
