"""Walking over the texts inside payload data, and name patterns with `*`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

MAX_DEPTH = 64


def map_texts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Apply `change` to every text inside `value`; gives `value` itself when nothing changed."""
    if type(value) is str:
        return change(value)
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, dict):
        mapped = {key: map_texts(item, change, depth + 1) for key, item in value.items()}
        return mapped if any(mapped[key] is not value[key] for key in value) else value
    if isinstance(value, list):
        items = [map_texts(item, change, depth + 1) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else items
    if isinstance(value, BaseModel):
        updates = {
            name: new
            for name, old in value
            if (new := map_texts(old, change, depth + 1)) is not old
        }
        return value.model_copy(update=updates) if updates else value
    return value


def compile_names(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Give a test for names like `shell.*`; `*` and `?` are wildcards, case counts."""
    sources = [fnmatch.translate(pattern) for pattern in patterns]
    if not sources:
        return lambda _name: False
    test = re.compile("|".join(sources))
    return lambda name: test.match(name) is not None


__all__ = ["compile_names", "map_texts"]
