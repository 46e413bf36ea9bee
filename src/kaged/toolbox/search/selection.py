"""Which entries of a search are returned when not all of them fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.search.records import RawHit

PER_FILE: Final = 20
"""So many hits of one file are taken before others had their turn."""

_TURN: Final = 250
_T = TypeVar("_T")


def fair_share(hits: Sequence[RawHit], limit: int) -> list[RawHit]:
    """Cut sorted hits to a limit so that one hot file cannot hide the others; keeps the order."""
    if len(hits) <= limit:
        return list(hits)
    first: list[int] = []
    later: list[int] = []
    path, taken = b"", 0
    for index, hit in enumerate(hits):
        if hit.path != path:
            path, taken = hit.path, 0
        taken += 1
        (first if taken <= PER_FILE else later).append(index)
    chosen = first[:limit]
    chosen += later[: limit - len(chosen)]
    return [hits[index] for index in sorted(chosen)]


async def fill(
    items: Sequence[_T], entry_of: Callable[[_T], JsonObject], output_bytes: int
) -> tuple[list[JsonValue], bool]:
    """Turn items into entries until their text is too long; return whether all fitted.

    Gives way to other work every now and then: thousands of entries take a while.
    """
    entries: list[JsonValue] = []
    size = 2
    for number, item in enumerate(items):
        entry = entry_of(item)
        size += len(json.dumps(entry)) + 2
        if size > output_bytes:
            return entries, False
        entries.append(entry)
        if number % _TURN == _TURN - 1:
            await asyncio.sleep(0)
    return entries, True
