"""`OperatorRecord`: what the operator had in protected places, by digest; it outlives a daemon.

Whatever goes back in time asks it: git in a cage, a script that rewinds, undo. A content that the
operator had in a place may come back there; what an agent wrote there may not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

MAX_CONTENTS: Final = 64
MAX_PLACES: Final = 2_000


class OperatorRecord:
    """The digests of one tree, by the key of their place."""

    def __init__(self, folder: Path, root: str) -> None:
        self._file = folder / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        self._changed = False
        self._digests: dict[str, list[str]] = {}
        # What cannot be read is not known, and nothing comes back then.
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._digests = msgspec.json.decode(self._file.read_bytes(), type=dict[str, list[str]])

    def add(self, key: str, digest: str) -> None:
        """Take note of a content that nobody but the operator can have made."""
        if _text(key) not in self._digests and len(self._digests) >= MAX_PLACES:
            return
        known = self._digests.setdefault(_text(key), [])
        if digest not in known:
            self._digests[_text(key)] = [*known, digest][-MAX_CONTENTS:]
            self._changed = True

    def has(self, key: str, digest: str) -> bool:
        """Return whether the operator had this content in such a place."""
        return digest in self._digests.get(_text(key), ())

    def keep(self) -> None:
        """Write it down where something was added. Raises OSError."""
        if self._changed:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._file.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(self._digests))
            fresh.chmod(0o600)
            fresh.replace(self._file)
            self._changed = False


def _text(key: str) -> str:
    """Write a key so that every byte of it can be stored."""
    return os.fsencode(key).decode("latin-1")
