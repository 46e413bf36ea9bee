"""`Output`: one result, shown as JSON, as plain lines for pipes, or as tables; and shared views.

What comes from projects, agents and plugins is never trusted to be harmless on a terminal: control
characters are written out, and nothing is read as markup.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kaged.cli.exits import Exit

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

    def text(self, text: str, value: Any) -> None:
        """Show a text of our own to the letter, or `value` as JSON."""
        if self.as_json:
            self.result(value)
        else:
            self.raw(text)

    def note(self, text: object) -> None:
        """Print a note about the result, beside it."""
        if not self.as_json:
            self._write(self._stderr, harmless(text))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
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

        table = Table(header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
        self._console().print(table)

    def wrote(self, file: Path | None, hint: str = "") -> None:
        """Show which file was written; nothing when it was standard output."""
        if file is not None:
            size = file.stat().st_size
            self.result({"file": str(file.absolute()), "bytes": size})
            self.line(f"Wrote {file} ({size} bytes){hint}.")

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
        return stream.isatty() and not os.environ.get("NO_COLOR")

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(f"{text}\n")
        stream.flush()


View = Callable[[Any, Output], Exit | None]
"""Shows a result to people; returns the exit code if it is not 0."""

Column = str | tuple[str, Callable[[Any], object]]
"""A column: `heading`, which is also the key; `heading=key`; or a heading and a function."""


def show_rows(rows: Sequence[Any], columns: Sequence[Column], output: Output) -> None:
    """Show rows as a table with these columns."""
    headings, cells = zip(*map(_parsed, columns), strict=True)
    output.table(headings, [[cell(row) for cell in cells] for row in rows])


def _parsed(column: Column) -> tuple[str, Callable[[Any], object]]:
    if not isinstance(column, str):
        return column
    heading, _, key = column.partition("=")
    return heading, itemgetter(key or heading)


def table(columns: Sequence[Column], items: str | None = None) -> View:
    """Return a view that shows the rows of a result, or those under one of its keys.

    A result with a `total` above the number of rows gets a note that says so.
    """

    def show(found: Any, output: Output) -> None:
        rows = found if items is None else found[items]
        show_rows(rows, columns, output)
        total = 0 if items is None else found.get("total", 0)
        if total > len(rows):
            output.note(f"{len(rows)} of {total}.")

    return show


def show_lines(found: Any, output: Output) -> None:
    """Show the lines that the daemon wrote for people."""
    for line in found["lines"]:
        output.line(line)


def joined(key: str, empty: str = "") -> Callable[[Any], str]:
    """Return a column that joins the texts under a key with commas."""
    return lambda row: ", ".join(row[key]) or empty


def moment(key: str) -> Callable[[Any], str]:
    """Return a column that shows the moment under a key to the second."""
    return lambda row: short_moment(row[key])


def short_moment(value: str | None) -> str:
    """Return a moment to the second, without its zone."""
    return "" if value is None else value[:19].replace("T", " ")


def text_of(value: Any) -> str:
    """Return a value as a cell: texts as they are, nothing for None, the rest as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
