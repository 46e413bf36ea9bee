"""`scan_html`: the tags and texts of a page in one pass, in time that grows with its size. Pure.

Pages are written by anybody. The standard library's parser takes quadratic time for some malformed
ones, in single searches that no deadline ends; here each search is bounded, and what cannot be read
as a tag is text or is passed over.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

MAX_TAG_CHARS: Final = 256 * 1024
"""A longer tag is cut there: pictures inside of pages stand in attributes."""

MAX_ATTRIBUTES: Final = 64


def words(listed: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(listed.split())


RAW: Final = frozenset({"script", "style", "textarea", "title", "xmp", "iframe", "noembed"})
"""Elements in which nothing but their own end is a tag."""

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9:-]{0,31}")
_ATTRIBUTE: Final = re.compile(r"[\s/]*([^\s/>=\"'][^\s/>=]{0,63})")
_EQUALS: Final = re.compile(r"\s{0,64}=\s{0,64}")
_BARE: Final = re.compile(r"[^\s>]{0,8192}")


class PageText(NamedTuple):
    """Text between tags, its character references resolved."""

    text: str


class TagStart(NamedTuple):
    """The start of an element; its name and those of its attributes are in lower case."""

    name: str
    attributes: Mapping[str, str] = NO_ATTRIBUTES


class TagEnd(NamedTuple):
    """The end of an element."""

    name: str


def scan_html(page: str) -> Iterator[PageText | TagStart | TagEnd]:
    """Yield the parts of a page in order; comments and declarations are left out."""
    at, size = 0, len(page)
    while at < size:
        start = page.find("<", at)
        if start < 0:
            yield PageText(html.unescape(page[at:]))
            return
        if start > at:
            yield PageText(html.unescape(page[at:start]))
        named = _NAME.match(page, start + 1)
        if named is not None:
            name = named.group().lower()
            attributes, at = _attributes(page, named.end())
            yield TagStart(name, attributes)
            if name in RAW:
                inner, at = _raw(page, at, name)
                yield PageText(html.unescape(inner))
                yield TagEnd(name)
        elif page.startswith("</", start):
            ended = _NAME.match(page, start + 2)
            at = _after(page, ">", start)
            if ended is not None:
                yield TagEnd(ended.group().lower())
        elif page.startswith("<!--", start):
            end = page.find("-->", start + 4)
            if end < 0:
                return  # as browsers do: all that follows is part of the comment
            at = end + 3
        elif page.startswith(("<!", "<?"), start):
            at = _after(page, ">", start)
        else:
            yield PageText("<")
            at = start + 1


def _attributes(page: str, at: int) -> tuple[Mapping[str, str], int]:
    """Read attributes; returns them with the place behind the tag."""
    found: dict[str, str] = {}
    last = min(len(page), at + MAX_TAG_CHARS)
    for _ in range(MAX_ATTRIBUTES):
        named = _ATTRIBUTE.match(page, at, last)
        if named is None:
            break
        name, at = named.group(1).lower(), named.end()
        value = ""
        equals = _EQUALS.match(page, at, last)
        if equals is not None:
            at = equals.end()
            quote = page[at : at + 1]
            if quote in ('"', "'"):
                end = page.find(quote, at + 1, last)
                if end < 0:
                    return found, last
                value, at = page[at + 1 : end], end + 1
            else:
                bare = _BARE.match(page, at, last)
                value, at = ("", at) if bare is None else (bare.group(), bare.end())
        found.setdefault(name, html.unescape(value[:8192]))
    return found, _after(page, ">", at)


def _after(page: str, mark: str, at: int) -> int:
    """Return the place behind the next `mark`; of a tag that is too long, where it is cut."""
    last = min(len(page), at + MAX_TAG_CHARS)
    end = page.find(mark, at, last)
    return last if end < 0 else end + 1


def _raw(page: str, at: int, name: str) -> tuple[str, int]:
    """Return what stands in an element without tags, and the place behind its end."""
    ending = re.compile(rf"</{name}[\s/>]", re.IGNORECASE)
    found = ending.search(page, at)
    if found is None:
        return page[at:], len(page)
    return page[at : found.start()], _after(page, ">", found.start())
