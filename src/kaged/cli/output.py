"""`Output`: one result, shown as JSON, as plain lines for pipes, or as tables for people.

What comes from projects, agents and plugins is never trusted to be harmless on a terminal: control
characters are written out, and nothing is read as markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from kaged.base import KagedError

# C0 and C1 controls, and the characters that turn the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]")
_BREAKS = re.compile("[\t\n\u2028\u2029]")


def harmless(text: object) -> str:
    """Write text so that a terminal only shows it: escapes, bells and the like are spelt out."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def one_line(text: object) -> str:
    """Write text so that it takes one line and no column of its own."""
    return _BREAKS.sub(" ", harmless(text))


class Output:
    """Where a command's result goes, and in which of the three forms."""

    def __init__(
        self, *, as_json: bool, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._stdout = sys.stdout if stdout is None else stdout
        self._stderr = sys.stderr if stderr is None else stderr

    @property
    def for_people(self) -> bool:
        """Whether somebody is looking: a terminal, and no JSON was asked for."""
        return self._stdout.isatty() and not self.as_json

    def result(self, value: Any) -> None:
        """Show the machine form of a result, when that is what was asked for."""
        if self.as_json:
            # ASCII output, so that what is inside strings cannot speak to the terminal.
            self._write(self._stdout, json.dumps(value, indent=2))

    def line(self, text: object = "") -> None:
        """Show one line of the human form."""
        if not self.as_json:
            self._write(self._stdout, harmless(text))

    def json_line(self, value: Any) -> None:
        """Show one record of a stream as a JSON line."""
        self._write(self._stdout, json.dumps(value, separators=(",", ":")))

    def raw(self, text: str) -> None:
        """Write something that is ours to the letter: a token, a script, a schema."""
        self._write(self._stdout, text)

    def note(self, text: object) -> None:
        """Print a note about the result, beside it."""
        if not self.as_json:
            self._write(self._stderr, harmless(text))

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
    ) -> None:
        """Show rows: a table on a terminal, tab-separated lines without a head in a pipe."""
        if self.as_json:
            return
        cells = [[one_line("" if cell is None else cell) for cell in row] for row in rows]
        if not self.for_people:
            for row in cells:
                self._write(self._stdout, "\t".join(row))
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left", header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
        self._console().print(table)

    def fields(self, pairs: Mapping[str, object]) -> None:
        """Show named values, one per line."""
        if self.as_json:
            return
        width = max((len(name) for name in pairs), default=0)
        for name, value in pairs.items():
            shown = one_line("-" if value is None else value)
            gap = name.ljust(width + 2) if self.for_people else f"{name}\t"
            self._write(self._stdout, f"{gap}{shown}")

    def error(self, code: str, message: str, fix: str | None, body: Any) -> None:
        """Show why a command failed, on standard error, in the same form as its result."""
        if self.as_json:
            self._write(self._stderr, json.dumps(body, indent=2))
            return
        red, plain = ("\x1b[31m", "\x1b[0m") if self._colours(self._stderr) else ("", "")
        self._write(self._stderr, f"{red}error{plain}: {harmless(message)} [{harmless(code)}]")
        if fix:
            self._write(self._stderr, f"  fix: {harmless(fix)}")

    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self._stdout, highlight=False, markup=False, emoji=False)

    def _colours(self, stream: TextIO) -> bool:
        import os

        return stream.isatty() and not os.environ.get("NO_COLOR")

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(f"{text}\n")
        stream.flush()


def error_json(error: KagedError) -> dict[str, Any]:
    """Write an error of this process in the daemon's one shape."""
    data: dict[str, Any] = dict(error.data)
    if error.fix:
        data["fix"] = error.fix
    return {
        "error": {"code": error.code, "message": error.message, "data": data, "request_id": None}
    }


def _style(cell: str) -> str:
    return {"ok": "green", "warn": "yellow", "fail": "red", "yes": "green", "no": "dim"}.get(
        cell, ""
    )
