"""Walking over the texts inside payload data, and name patterns with `*`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

MAX_DEPTH = 64


def map_texts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Apply `change` to every text inside `value`, keys of mappings included.

    Gives `value` itself when nothing changed.

    Raises:
        ValueError: it is nested too deeply to be looked at whole.
    """
    if isinstance(value, str):
        return change(value)
    if not isinstance(value, (dict, list, tuple, set, frozenset, BaseModel)):
        return value
    if depth >= MAX_DEPTH:
        raise ValueError(f"a value is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        mapped = [
            (map_texts(key, change, depth + 1), map_texts(item, change, depth + 1))
            for key, item in value.items()
        ]
        same = all(
            new[0] is old[0] and new[1] is old[1]
            for new, old in zip(mapped, value.items(), strict=True)
        )
        return value if same else dict(mapped)
    if isinstance(value, BaseModel):
        updates = {
            name: new
            for name, old in value
            if (new := map_texts(old, change, depth + 1)) is not old
        }
        return value.model_copy(update=updates) if updates else value
    old_items: list[Any] = list(value)
    items = [map_texts(item, change, depth + 1) for item in old_items]
    if all(new is old for new, old in zip(items, old_items, strict=True)):
        return value
    for builtin in (list, tuple, set):
        if isinstance(value, builtin):
            return builtin(items)
    return frozenset(items)


def compile_names(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test for names like `shell.*`; `*` and `?` are wildcards, case counts."""
    sources = [fnmatch.translate(pattern) for pattern in patterns]
    if not sources:
        return lambda _name: False
    test = re.compile("|".join(sources))
    return lambda name: test.match(name) is not None
