"""`without_section`: the lines of a TOML text without those of one table. Pure.

What it gives is a proposal: whoever uses it reads the new text and compares what it says, because
a line inside of a long text may look like a header.
"""

from __future__ import annotations

import tomllib
from typing import Any

from kaged.config.problems import KeyPath


def without_section(text: str, path: KeyPath) -> str:
    """Return the text without the headers at and below a path and the lines that are theirs.

    Comments and blank lines in front of the next header belong to that one and stay.
    """
    kept: list[str] = []
    inside = False
    waiting: list[str] = []  # blank lines and comments, of which nobody knows yet whose they are
    for line in text.splitlines(keepends=True):
        header = _header(line)
        if header is not None:
            was_inside, inside = inside, header[: len(path)] == path
            if not (was_inside and inside):
                kept += waiting
            waiting = []
        elif inside and (not line.strip() or line.lstrip().startswith("#")):
            waiting.append(line)
            continue
        elif inside:
            waiting = []
        if not inside:
            kept.append(line)
    return "".join([*kept, *waiting])


def _header(line: str) -> KeyPath | None:
    """Return the path that a header names; None for every other line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        found: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    steps: list[str] = []
    while found:
        found = found[0] if isinstance(found, list) else found
        if not found:
            break
        ((step, found),) = found.items()
        steps.append(step)
    return tuple(steps)
