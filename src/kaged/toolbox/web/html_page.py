"""`read_page`: a page of HTML as Markdown or plain text, as far as a reader would see it. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from kaged.toolbox.web.html_scanner import RAW, PageText, TagEnd, TagStart, scan_html, words
from kaged.toolbox.web.page_blocks import PageBlocks, PageFull, seen, tidied

MAX_DEPTH: Final = 512
"""Elements further inside are read as if they were not nested any deeper."""

MAX_TITLE_CHARS: Final = 300
MAX_TARGET_CHARS: Final = 2000
_CHECKED_EVERY: Final = 256

_VOID: Final = words("area base br col embed hr img input link meta param source track wbr")
_DROPPED: Final = (RAW - {"title", "textarea", "xmp"}) | words(
    "noscript template svg math object canvas audio video select datalist dialog"
)
_BLOCKS: Final = words(
    "address article aside body caption center dd details div dl dt fieldset figcaption figure "
    "footer form header hgroup html legend li main nav ol p section summary table tbody td tfoot "
    "th thead tr ul blockquote pre h1 h2 h3 h4 h5 h6 hr"
)
_ENDS_LIKE: Final[dict[str, frozenset[str]]] = {
    "p": frozenset({"p"}),
    "li": frozenset({"li", "p"}),
    "dt": frozenset({"dt", "dd", "p"}),
    "dd": frozenset({"dt", "dd", "p"}),
    "td": frozenset({"td", "th", "p"}),
    "th": frozenset({"td", "th", "p"}),
    "tr": frozenset({"td", "th", "tr", "p"}),
}
"""What need not be closed: a start of the first ends those of the others that are open."""

_PARAGRAPH: Final = frozenset({"p"})
_NOTHING: Final = frozenset[str]()

_WRAPS: Final = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`", "kbd": "`"}
_HIDING: Final = re.compile(
    r"(?:display\s{0,9}:\s{0,9}none|visibility\s{0,9}:\s{0,9}hidden)", re.IGNORECASE
)
_LANGUAGE: Final = re.compile(r"(?:^|\s)(?:language|lang|highlight-source)-([A-Za-z0-9+#-]{1,20})")
_GAPS: Final = re.compile(r"[ \t\r\n\f]+")


class ReadPage(NamedTuple):
    """What a page says. `complete` is False when it was too long, or took too long to read."""

    title: str
    text: str
    complete: bool


class _Open(NamedTuple):
    """An element that has begun: where its text starts, and whether it hides what is in it."""

    name: str
    hides: bool
    flushes: int
    start: int
    target: str = ""


def read_page(
    page: str, base: str, *, marks: bool = True, stop: Callable[[], bool] = lambda: False
) -> ReadPage:
    """Read a page that came from the address `base`. `stop` is asked now and then."""
    reader = _Reader(base, marks=marks)
    complete = True
    try:
        for at, part in enumerate(scan_html(page)):
            if at % _CHECKED_EVERY == 0 and stop():
                complete = False
                break
            reader.take(part)
        reader.flush()
    except PageFull:
        complete = False
    with contextlib.suppress(PageFull):
        reader.blocks.table_ends()
    return ReadPage(reader.title, reader.blocks.text, complete)


class _Reader:
    """Turns the parts of a page into blocks."""

    def __init__(self, base: str, *, marks: bool) -> None:
        self.blocks = PageBlocks(marks=marks)
        self.title = ""
        self._base = base
        self._marks = marks
        self._open: list[_Open] = []
        self._hidden = 0
        self._inline: list[str] = []
        self._flushes = 0
        self._pre: list[str] | None = None
        self._language = ""
        self._heading = ""

    def take(self, part: PageText | TagStart | TagEnd) -> None:
        """Take the next part."""
        if isinstance(part, PageText):
            self._text(part.text)
        elif isinstance(part, TagStart):
            self._begin(part)
        else:
            self._end(part.name)

    def flush(self) -> None:
        """End the block that is being collected."""
        text, self._inline = "".join(self._inline), []
        self._flushes += 1
        mark, self._heading = self._heading, ""
        if mark:
            text = tidied(text).replace("\n", " ")
        self.blocks.block(text, mark=mark)

    # -- parts -----------------------------------------------------------------------------------

    def _text(self, text: str) -> None:
        if self._open and self._open[-1].name == "title":
            self.title = self.title or tidied(_GAPS.sub(" ", seen(text)))[:MAX_TITLE_CHARS]
        elif self._hidden:
            return
        elif self._pre is not None:
            self._pre.append(seen(text.replace("\r\n", "\n")))
        else:
            self._inline.append(_GAPS.sub(" ", seen(text)))

    def _begin(self, tag: TagStart) -> None:
        name = tag.name
        self._end_implied(_ENDS_LIKE.get(name, _PARAGRAPH if name in _BLOCKS else _NOTHING))
        hides = name in _DROPPED or name == "head" or _is_hidden(tag)
        if name == "base" and not self._hidden:
            self._base = _target(self._base, tag.attributes.get("href", "")) or self._base
        if name in _VOID:
            if not (hides or self._hidden):
                self._void(tag)
            return
        if not (hides or self._hidden):
            self._enter(tag)
        if len(self._open) >= MAX_DEPTH:
            return
        target = ""
        if name == "a" and self._marks:
            target = _target(self._base, tag.attributes.get("href", ""))
        self._open.append(_Open(name, hides, self._flushes, len(self._inline), target))
        self._hidden += hides

    def _void(self, tag: TagStart) -> None:
        if tag.name == "br":
            (self._inline if self._pre is None else self._pre).append("\n")
        elif tag.name == "hr":
            self.flush()
            self.blocks.rule()
        elif tag.name == "img":
            alt = tidied(_GAPS.sub(" ", seen(tag.attributes.get("alt", ""))))
            source = _target(self._base, tag.attributes.get("src", ""))
            if alt:
                self._inline.append(f"![{alt}]({source})" if self._marks and source else alt)

    def _enter(self, tag: TagStart) -> None:
        name = tag.name
        if self._pre is not None:
            self._language = self._language or _language(tag)
            return
        if name in _BLOCKS:
            self.flush()
        if name in ("ul", "ol"):
            start = tag.attributes.get("start", "1")
            number = int(start) if start.isascii() and start.isdigit() and len(start) < 7 else 1
            self.blocks.list_begins(number if name == "ol" else None)
        elif name == "li":
            self.blocks.item()
        elif name == "pre":
            self._pre, self._language = [], _language(tag)
        elif name == "blockquote":
            self.blocks.quote(1)
        elif name == "table":
            self.blocks.table_begins()
        elif name == "tr":
            self.blocks.row()
        elif name in ("td", "th"):
            self.blocks.cell()
        elif len(name) == 2 and name[0] == "h" and name[1] in "123456":
            self._heading = "#" * int(name[1]) + " " if self._marks else ""

    def _end_implied(self, names: frozenset[str]) -> None:
        """End what need not be closed, as far as nothing but inline elements is open within it."""
        while names:
            at = len(self._open) - 1
            while at >= 0 and self._open[at].name not in _BLOCKS:
                at -= 1
            if at < 0 or self._open[at].name not in names:
                return
            while len(self._open) > at:
                self._close(self._open.pop())

    def _end(self, name: str) -> None:
        if not any(one.name == name for one in self._open):
            return
        while self._open:
            one = self._open.pop()
            self._close(one)
            if one.name == name:
                return

    def _close(self, one: _Open) -> None:
        if one.hides:
            self._hidden -= 1
            return
        if self._hidden:
            return
        name = one.name
        if self._pre is not None:
            if name == "pre":
                code, self._pre = "".join(self._pre), None
                self.blocks.code(code, self._language)
            return
        if name in _BLOCKS:
            self.flush()
        if name in ("ul", "ol"):
            self.blocks.list_ends()
        elif name == "blockquote":
            self.blocks.quote(-1)
        elif name == "table":
            self.blocks.table_ends()
        elif name in ("td", "th"):
            self.blocks.cell_ends()
        elif self._marks and (one.target or name in _WRAPS):
            self._wrap(one)

    def _wrap(self, one: _Open) -> None:
        """Put the marks of a link or an emphasis around what stands in it."""
        if one.flushes != self._flushes:
            if one.target:
                self._inline.append(f" ({one.target})")
            return
        text = "".join(self._inline[one.start :])
        said = text.strip()
        if not said:
            return
        del self._inline[one.start :]
        before, after = (" " if text[:1].isspace() else ""), (" " if text[-1:].isspace() else "")
        if one.target:
            made = f"[{said}]({one.target})"
        else:
            made = f"{_WRAPS[one.name]}{said}{_WRAPS[one.name]}"
        self._inline.append(before + made + after)


def _is_hidden(tag: TagStart) -> bool:
    said = tag.attributes
    return (
        "hidden" in said
        or said.get("aria-hidden", "").lower() == "true"
        or (tag.name == "input" and said.get("type", "").lower() == "hidden")
        or _HIDING.search(said.get("style", "")) is not None
    )


def _language(tag: TagStart) -> str:
    found = _LANGUAGE.search(tag.attributes.get("class", ""))
    return "" if found is None else found.group(1)


def _target(base: str, written: str) -> str:
    """Return where a link leads, in full; empty for a place of the page itself, and for scripts."""
    written = written.strip()
    if not written or written.startswith("#") or len(written) > MAX_TARGET_CHARS:
        return ""
    try:
        target = urljoin(base, written)
        kind = urlsplit(target).scheme
    except ValueError:
        return ""
    if kind not in ("http", "https", "mailto") or len(target) > MAX_TARGET_CHARS:
        return ""
    return _GAPS.sub("%20", seen(target)).replace("(", "%28").replace(")", "%29")
