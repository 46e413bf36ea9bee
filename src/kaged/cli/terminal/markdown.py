"""`MarkdownStream`: Markdown as it comes in, block by block. What is finished never changes again.

A block is finished when the next one begins; the one that is still being written is shown as it is
so far. What a model says is data: no markup of it speaks to the terminal, and none is left out.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from typing import Any, Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.text import Text

from kaged.cli.output import harmless

MAX_WIDTH: Final = 120
"""Lines of prose are not made longer than this, however wide the terminal is."""

MAX_FENCE_LINES: Final = 60
"""A block of code is shown in parts of this many lines, since it must be finished to scroll."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HEADING_STYLES: Final = {"h1": "bold underline", "h2": "bold"}


class _PlainHeading(Heading):
    """A heading at the left, where people look for it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        text = self.text
        text.justify = "left"
        text.stylize(_HEADING_STYLES.get(self.tag, "bold"))
        yield text


class _Markdown(Markdown):
    """Markdown without HTML: what looks like a tag is text, and is shown."""

    elements = {**Markdown.elements, "heading_open": _PlainHeading}  # noqa: RUF012 - as inherited

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
        self.markup = text
        self.parsed = parser.parse(text)


def console_for(width: int) -> Console:
    """Return a console that writes escapes for colors into memory, or none with NO_COLOR."""
    return Console(
        file=io.StringIO(),
        width=max(width, 20),
        force_terminal=True,
        no_color=bool(os.environ.get("NO_COLOR")),
        color_system="256",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def rendered(value: Any, width: int) -> list[str]:
    """Return what rich makes of something, as lines with escapes and without blanks at the end."""
    console = console_for(width)
    with console.capture() as captured:
        console.print(value)
    return [_trimmed(line) for line in captured.get().rstrip("\n").split("\n")]


def styled(text: str, style: str, width: int = 10_000) -> str:
    """Return one line in a style."""
    return rendered(Text(text, style=style, no_wrap=True, overflow="ellipsis"), width)[0]


class MarkdownStream:
    """One answer of a model."""

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False

    def feed(self, text: str, width: int) -> list[str]:
        """Take a piece; return the lines of the blocks that are finished by it."""
        self._rest += harmless(text)
        lines: list[str] = []
        for block in self._finished():
            lines += self._shown(block, width)
        return lines

    def tail(self, width: int) -> list[str]:
        """Return the lines of the block that is being written."""
        if not self._rest.strip():
            return []
        return self._spaced(_render(self._rest, width))

    def end(self, width: int) -> list[str]:
        """Return the lines of what is left; the answer is over."""
        block, self._rest = self._rest, ""
        lines = self._shown(block, width) if block.strip() else []
        self._begun = False
        return lines

    def drop(self) -> None:
        """Forget what is not finished: the attempt is void."""
        self._rest, self._begun = "", False

    def _shown(self, block: str, width: int) -> list[str]:
        lines = self._spaced(_render(block, width))
        self._begun = True
        return lines

    def _spaced(self, lines: list[str]) -> list[str]:
        return ["", *lines] if self._begun and lines else lines

    def _finished(self) -> Iterator[str]:
        """Yield the blocks at the beginning that nothing can change any more."""
        while True:
            cut = _first_end(self._rest)
            if cut is None:
                return
            block, reopened, self._rest = self._rest[: cut[0]], cut[1], self._rest[cut[0] :]
            self._rest = reopened + self._rest.lstrip("\n") if not reopened else (
                reopened + self._rest
            )  # fmt: skip
            if block.strip():
                yield block


def _first_end(text: str) -> tuple[int, str] | None:
    """Return where the first block ends, and what its rest begins with if it is cut in the middle.

    A list goes on behind an empty line, so that its items are blocks of their own and keep their
    numbers.
    """
    at, fence, opening, inside = 0, "", "", 0
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1]):  # the last one is not whole yet
        found = _FENCE.match(line)
        if fence:
            inside += 1
            if found and found[1].startswith(fence) and not found[2].strip():
                return at + len(line) + 1, ""
            if inside >= MAX_FENCE_LINES:
                return at + len(line) + 1, f"{opening}\n"
        elif found:
            if at and text[:at].strip():
                return at, ""
            fence, opening = found[1], line
        elif not line.strip() and text[:at].strip() and _goes_elsewhere(lines[number + 1 :]):
            return at + len(line) + 1, ""
        at += len(line) + 1
    return None


def _goes_elsewhere(following: list[str]) -> bool:
    """Return whether what follows an empty line is a block of its own: there is something of it."""
    first = next((one for one in following if one.strip()), "")
    return bool(first) and not first.startswith(("  ", "\t"))


def _render(block: str, width: int) -> list[str]:
    lines = rendered(_Markdown(block.strip("\n")), min(width, MAX_WIDTH))
    # Lists and tables bring empty lines of their own.
    while lines and not _bare(lines[0]):
        del lines[0]
    while lines and not _bare(lines[-1]):
        del lines[-1]
    return lines


def _bare(line: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", line).strip()


def _trimmed(line: str) -> str:
    return re.sub(r"\s+((?:\x1b\[0m)?)$", r"\1", line)
