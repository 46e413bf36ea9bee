"""`ToolNames`: what tools are called towards models, whose vendors allow few letters. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

MAX_NAME_CHARS: Final = 64
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARS = 8


class ToolNames:
    """Both names of each tool of an agent: its own, and the one that the model uses.

    `file.read` becomes `file_read`. Where two tools would share a name, or one is too long, it
    ends with letters made from the tool's own name, so that it stays the same in every session.
    """

    __slots__ = ("_by_own", "_by_safe")

    def __init__(self, names: Iterable[str]) -> None:
        self._by_own: dict[str, str] = {}
        self._by_safe: dict[str, str] = {}
        ordered = sorted(names)
        plain = [_FORBIDDEN.sub("_", name) for name in ordered]
        shared = {one for one in plain if plain.count(one) > 1}
        for name, wanted in zip(ordered, plain, strict=True):
            # A name that needs no change keeps it, whoever else would like to have it.
            taken = wanted != name and wanted in shared
            safe = _marked(name, wanted) if taken or len(wanted) > MAX_NAME_CHARS else wanted
            self._by_own[name] = safe
            self._by_safe[safe] = name

    def safe(self, name: str) -> str:
        """Return the name a model knows a tool by; one that is not offered is made harmless."""
        return self._by_own.get(name) or _FORBIDDEN.sub("_", name)[:MAX_NAME_CHARS] or "_"

    def own(self, said: str) -> str:
        """Return the tool that a model means; an unknown name stays as it is.

        Models that know a tool's own name from elsewhere may use it as well.
        """
        return self._by_safe.get(said, said)


def _marked(name: str, wanted: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{wanted[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"
