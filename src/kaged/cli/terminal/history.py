"""`ChatHistory`: what was typed in the chats of one project, in a file of its owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from prompt_toolkit.history import FileHistory

MAX_BYTES: Final = 1024 * 1024


class ChatHistory(FileHistory):
    """Keeps messages and commands, and never what answers a question."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            os.fchmod(descriptor, 0o600)
            os.close(descriptor)
            _shorten(path)
        self.keeps = True
        super().__init__(str(path))

    def append_string(self, string: str) -> None:
        """Keep what was typed, unless it answers a question."""
        if self.keeps and string.strip():
            super().append_string(string)

    def load_history_strings(self) -> Iterable[str]:
        """Yield what was typed, the last first; nothing if the file cannot be read."""
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        """Write it down, if the disk takes it."""
        with suppress(OSError):
            super().store_string(string)


def _shorten(path: Path) -> None:
    """Keep the newer half of a file that has become too long."""
    if path.stat().st_size <= MAX_BYTES:
        return
    data = path.read_bytes()[-MAX_BYTES // 2 :]
    # An entry begins with an empty line and a comment with its time.
    at = data.find(b"\n\n# ")
    path.write_bytes(data[at + 1 :] if at >= 0 else b"")
