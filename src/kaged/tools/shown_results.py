"""`ShownResults`: how the result of a call enters a window: as text, within a budget, never lost.

    result → text → fits? → as it is
                  → does not → head, note, tail; the whole is kept, or can be read again

The result itself, which programs and the record of the call get, has the limits of its tool alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from kaged.base.lazy_dataclass import dataclass
from kaged.tools.result_cut import MIN_RESULT_TOKENS, fit_lines, tokens_of, wrapped
from kaged.tools.result_text import PLAIN_VIEW, PagedText, ResultView, text_of

if TYPE_CHECKING:
    from kaged.base import JsonValue
    from kaged.tools.context import ToolCallContext
    from kaged.tools.kept_results import KeptResults

READ_TOKENS: Final = 25_000
RESULT_TOKENS: Final = 8_000
READ_TOOL: Final = "file.read"
SEARCH_TOOL: Final = "search.grep"

SHORT_CHARS: Final = 1_500
"""A value that is shorter, and has no text of several lines, stays JSON."""

_KB: Final = 1024
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class ResultBudget:
    """How many tokens one result may take of a window: of a tool that reads, and of another."""

    read_tokens: int = READ_TOKENS
    tokens: int = RESULT_TOKENS

    def of(self, view: ResultView, room_tokens: int | None = None) -> int:
        """Return the budget of a result; it is smaller where the window has less room."""
        wanted = self.read_tokens if view.is_read else self.tokens
        return wanted if room_tokens is None else max(MIN_RESULT_TOKENS, min(wanted, room_tokens))


@dataclass(frozen=True, slots=True)
class ShownResults:
    """Writes results for windows. `kept` None keeps nothing: what is left out is only named."""

    kept: KeptResults | None = None
    budget: Callable[[], ResultBudget] = ResultBudget

    def fits(self, text: str, view: ResultView = PLAIN_VIEW) -> bool:
        """Return whether a text is within the budget."""
        return tokens_of(text) <= self.budget().of(view)

    async def show(
        self,
        value: JsonValue,
        context: ToolCallContext,
        *,
        view: ResultView = PLAIN_VIEW,
        readers: Iterable[str] = (),
        room_tokens: int | None = None,
    ) -> str:
        """Return the text that a model gets of a result; `readers` are the tools of the caller."""
        limit = self.budget().of(view, room_tokens)
        if isinstance(value, dict):
            paged = None if view.paged is None else view.paged(value)
            if paged is not None:
                return _paged(paged, limit)
            text = _short(value) or text_of(value) if view.write is None else view.write(value)
        else:
            text = _short(value) or text_of(value)
        return await self.fit(text, context, limit, readers)

    async def fit(
        self,
        text: str,
        context: ToolCallContext,
        limit_tokens: int,
        readers: Iterable[str],
        *,
        least: int = MIN_RESULT_TOKENS,
    ) -> str:
        """Return a text if it fits; else keep it, and return its head and tail with the handle.

        It is not made shorter than `least`.
        """
        if tokens_of(text) <= max(limit_tokens, least):
            return text
        whole = wrapped(text)
        can = frozenset(readers)
        handle: str | None = None
        if self.kept is not None and READ_TOOL in can:
            handle = await asyncio.to_thread(self.kept.keep, context, whole)
        total = whole.count("\n") + 1

        def left_out(first: int, last: int, size: int) -> str:
            return _note(handle, first, last, total, size, searchable=SEARCH_TOOL in can)

        return fit_lines("", whole, 1, limit_tokens, left_out, least=least)


def _short(value: JsonValue) -> str | None:
    """Return a small value as compact JSON, which models read as well; None for any other.

    Text of several lines is none: there the escapes cost more than all the rest.
    """
    if isinstance(value, str):
        return None
    written = _compact(value)
    return written if len(written) <= SHORT_CHARS and "\\n" not in written else None


def _paged(paged: PagedText, limit_tokens: int) -> str:
    """Write a result whose lines can be read again where they are."""

    def left_out(first: int, last: int, size: int) -> str:
        return (
            f"[lines {first}-{last} of this answer left out, {_size(size)}: "
            f"{READ_TOOL} {paged.path} with offset {first} and limit {last - first + 1}]"
        )

    return fit_lines(paged.head, paged.text, paged.first, limit_tokens, left_out)


def _note(
    handle: str | None, first: int, last: int, total: int, size: int, *, searchable: bool
) -> str:
    """Return what is left out of a result, and how to get it."""
    missing = f"[lines {first}-{last} of {total} left out, {_size(size)}"
    if handle is None:
        return f"{missing}: ask for less]"
    ways = f"{READ_TOOL} {handle} with offset {first}"
    if searchable:
        ways += f", or {SEARCH_TOOL} with path {handle}"
    return f"{missing}: {ways}]"


def _size(size: int) -> str:
    return f"{size} bytes" if size < _KB else f"{round(size / _KB)} KiB"
