"""`Instructions`: what a project's `AGENTS.md` or `CLAUDE.md` says to agents that work in it."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.files import read_text
from kaged.config.problems import ConfigFileInvalid

INSTRUCTION_FILES: Final = ("AGENTS.md", "CLAUDE.md")
"""The names, the first that a folder has counts: the second is often a copy of it, or a link."""

MAX_INSTRUCTION_BYTES: Final = 32 * 1024
"""How much of a file becomes part of a prompt."""

MAX_READ_BYTES: Final = 1024 * 1024
"""A larger file is not read at all."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """The instructions of one folder. `text` is what of them enters a prompt."""

    path: str
    text: str
    sha256: str
    size: int

    @property
    def is_cut(self) -> bool:
        """Whether the file is longer than what enters a prompt."""
        return self.size > MAX_INSTRUCTION_BYTES

    def as_json(self) -> JsonObject:
        """Write down which instructions they are, without what they say."""
        return {"path": self.path, "sha256": self.sha256, "bytes": self.size, "cut": self.is_cut}


def parse_instructions(path: str, data: bytes) -> Instructions | None:
    """Return the instructions in a file; None for one without any, or that is no text."""
    if len(data) > MAX_READ_BYTES or b"\0" in data:
        return None
    text = data.removeprefix(BOM_UTF8)[:MAX_INSTRUCTION_BYTES].decode("utf-8", "replace").strip()
    if not text:
        return None
    return Instructions(path, text, hashlib.sha256(data).hexdigest(), len(data))


def find_instructions(root: Path) -> Instructions | None:
    """Return the instructions at the root of a project; None where there are none of use."""
    for name in INSTRUCTION_FILES:
        try:
            found = read_text(root / name, limit_bytes=MAX_READ_BYTES, inside=root)
        except ConfigFileInvalid:
            continue
        made = parse_instructions(f"./{name}", found.text.encode("utf-8", "surrogateescape"))
        if made is not None:
            return made
    return None
