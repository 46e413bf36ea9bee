"""`PageBlocks`: the paragraphs, items, tables and code of a page as lines. Pure, and bounded."""

from __future__ import annotations

import re
from typing import Final

MAX_PAGE_CHARS: Final = 2 * 1024 * 1024
MAX_COLUMNS: Final = 64
MAX_INDENT: Final = 12

_SPACES: Final = re.compile(r"[ \t\r\f\v\xa0]+")
# What nobody sees: controls, marks that turn text around or have no width, and tag characters.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


class PageFull(Exception):
    """The page has more text than is kept."""


def seen(text: str) -> str:
    """Return a text without characters that people do not see."""
    return _UNSEEN.sub("", text)


def tidied(text: str) -> str:
    """Return the text of one block: single spaces, and no blank lines."""
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


class PageBlocks:
    """Takes the blocks of a page in order; `text` is what came of them.

    With `marks` they are written as Markdown, without as plain text.
    """

    def __init__(self, *, marks: bool) -> None:
        self._marks = marks
        self._lines: list[str] = []
        self._size = 0
        self._item_before = False
        self._quote_before = ""
        self._marker = ""
        self._lists: list[int | None] = []
        self._quotes = 0
        self._rows: list[list[str]] = []
        self._tables = 0
        self._cell: list[str] | None = None

    @property
    def text(self) -> str:
        """Return the lines so far."""
        return "\n".join(self._lines).strip("\n")

    def block(self, text: str, *, mark: str = "") -> None:
        """Take a paragraph, or with `mark` something that begins with that, such as a heading."""
        said = tidied(text)
        if not said:
            return
        if self._cell is not None:
            self._cell.append(said.replace("\n", " "))
            self._grow(len(said))
            return
        self._write([mark + line if at == 0 else line for at, line in enumerate(said.split("\n"))])

    def code(self, text: str, language: str = "") -> None:
        """Take preformatted text, whose spaces and lines stay."""
        said = text.strip("\n")
        if not said.strip():
            return
        if self._cell is not None:
            self.block(f"`{said}`" if self._marks else said)
            return
        fence = "```"
        while self._marks and fence in said:
            fence += "`"
        lines = said.split("\n")
        self._write([fence + language, *lines, fence] if self._marks else lines)

    def rule(self) -> None:
        """Take a line across the page."""
        if self._cell is None and self._marks:
            self._write(["---"])

    # -- lists and quotes ------------------------------------------------------------------------

    def list_begins(self, first: int | None) -> None:
        """Begin a list; numbered from `first` on, if that is given."""
        self._lists.append(first)

    def list_ends(self) -> None:
        """End the innermost list."""
        if self._lists:
            self._lists.pop()
        self._marker = ""
        self._item_before = self._item_before and bool(self._lists)

    def item(self) -> None:
        """Begin an item of the innermost list."""
        number = self._lists[-1] if self._lists else None
        self._marker = "- " if number is None else f"{number}. "
        if number is not None:
            self._lists[-1] = number + 1

    def quote(self, step: int) -> None:
        """Begin (1) or end (-1) a quotation."""
        self._quotes = max(0, self._quotes + step)

    # -- tables ----------------------------------------------------------------------------------

    def table_begins(self) -> None:
        """Begin a table; one within a cell becomes part of the cell's text."""
        self._tables += 1

    def row(self) -> None:
        """Begin a row."""
        if self._tables == 1:
            self._cell = None
            self._rows.append([])

    def cell(self) -> None:
        """Begin a cell."""
        if self._tables != 1:
            return
        self.cell_ends()
        if not self._rows:
            self._rows.append([])
        self._cell = []

    def cell_ends(self) -> None:
        """End the cell that was begun last."""
        if self._tables == 1 and self._cell is not None:
            row = self._rows[-1]
            if len(row) < MAX_COLUMNS:
                row.append(" ".join(self._cell))
            self._cell = None

    def table_ends(self) -> None:
        """Write the table, if this is the end of the outermost one."""
        if self._tables != 1:
            self._tables = max(0, self._tables - 1)
            return
        self.cell_ends()
        self._tables = 0
        rows, self._rows = [one for one in self._rows if any(one)], []
        width = max(map(len, rows), default=0)
        if width <= 1:
            for row in rows:
                self.block(row[0])
            return
        written = [self._row(row, width) for row in rows]
        if self._marks:
            written.insert(1, "|" + " --- |" * width)
        self._write(written)

    def _row(self, row: list[str], width: int) -> str:
        cells = [*row, *[""] * (width - len(row))]
        if not self._marks:
            return " | ".join(cells).rstrip()
        return "| " + " | ".join(one.replace("|", "\\|") for one in cells) + " |"

    # -- own -------------------------------------------------------------------------------------

    def _write(self, lines: list[str]) -> None:
        marker, self._marker = self._marker, ""
        level = min(len(self._lists), MAX_INDENT)
        quote = "> " * min(self._quotes, MAX_INDENT) if self._marks else ""
        # The text below a marker stands under the text behind it.
        before = quote + "  " * (level - 1 if marker and level else level)
        if self._lines and not (marker and self._item_before):
            between = min(quote, self._quote_before, key=len).rstrip()
            self._lines.append(between)
            self._size += len(between) + 1
        rest = before + " " * len(marker)
        made = [(before + marker if at == 0 else rest) + line for at, line in enumerate(lines)]
        self._item_before, self._quote_before = bool(level), quote
        room = MAX_PAGE_CHARS - self._size
        for line in made:
            if room <= 0:
                break
            self._lines.append(line.rstrip()[:room])
            room -= len(line) + 1
        self._grow(sum(map(len, made)) + len(made))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_PAGE_CHARS:
            raise PageFull
