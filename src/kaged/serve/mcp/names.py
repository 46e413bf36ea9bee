"""`NameMap`: tool names as MCP clients take them, and back.

Many clients hand names on to models, which take letters, digits, `_` and `-` and no more than 64
characters. `file.read` becomes `file_read`; where two would become the same, or one is too long,
the later one gets a piece of its hash. Built-in tools are named first, so that no plugin or outside
server ever changes what a built-in is called.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

MAX_NAME_CHARS: Final = 64
HASH_CHARS: Final = 8

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


class NameMap:
    """Maps the names of one agent's tools in both directions."""

    def __init__(self, own: Iterable[str], outside: Iterable[str] = ()) -> None:
        self._safe: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for name in (*sorted(own), *sorted(outside)):
            safe = self._free(name)
            self._safe[name] = safe
            self._names[safe] = name

    def safe(self, name: str) -> str:
        """Return the name that clients see. Raises KeyError for a tool that is not in the map."""
        return self._safe[name]

    def tool(self, asked: str) -> str:
        """Return the tool that a client means; any other name stands for itself.

        An unknown name comes back unchanged: dispatch says what is wrong with it.
        """
        return self._names.get(asked, asked)

    def _free(self, name: str) -> str:
        safe = _UNSAFE.sub("_", name)
        if len(safe) <= MAX_NAME_CHARS and safe not in self._names:
            return safe
        digest = hashlib.sha256(name.encode()).hexdigest()
        for size in range(HASH_CHARS, len(digest) + 1):
            tail = digest[: min(size, MAX_NAME_CHARS - 1)]
            wanted = f"{safe[: MAX_NAME_CHARS - len(tail) - 1]}_{tail}"
            if wanted not in self._names:
                return wanted
        raise KeyError(name)  # two names with one SHA-256
