"""`Surface`: finished lines above, lines that still change below. `DirectScreen` is a terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import Final, Protocol, TextIO

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
BEGIN_SYNC: Final = "\x1b[?2026h"
END_SYNC: Final = "\x1b[?2026l"
"""Terminals that know these show what is between them at once; others ignore them."""


class Surface(Protocol):
    """Where a run is shown."""

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        ...

    def update(self, finished: Sequence[str], live: Sequence[str]) -> None:
        """Add lines that are finished, and put these in the place of those that still change."""
        ...


class DirectScreen:
    """A terminal that nobody else writes to meanwhile."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: list[str] = []

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def update(self, finished: Sequence[str], live: Sequence[str]) -> None:
        """Add lines that are finished, and put these in the place of those that still change."""
        shown = list(live)
        if not finished and shown == self._live:
            return
        columns, lines = self.size()
        # A line that wraps would be counted wrongly when it is taken away.
        shown = [fitted(one, columns - 1) for one in shown[-max(1, lines - 1) :]]
        up = f"\x1b[{len(self._live) - 1}A" if len(self._live) > 1 else ""
        clear = f"\r{up}\x1b[J" if self._live else ""
        above = "".join(f"{one}\n" for one in finished)
        below = "\n".join(shown)
        self._stream.write(f"{BEGIN_SYNC}{clear}{above}{below}{END_SYNC}")
        self._stream.flush()
        self._live = shown


def columns_of(text: str) -> int:
    """Return how many columns a line takes, escapes aside."""
    from rich.cells import cell_len

    return cell_len(_ESCAPES.sub("", text))


def fitted(line: str, columns: int) -> str:
    """Cut a line to this many columns; colors end with it."""
    if columns_of(line) <= columns:
        return line
    from rich.text import Text

    from kaged.cli.terminal.markdown import rendered

    text = Text.from_ansi(line, no_wrap=True, overflow="ellipsis")
    text.truncate(max(columns, 1), overflow="ellipsis")
    return rendered(text, columns)[0]
