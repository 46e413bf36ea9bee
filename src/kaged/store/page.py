"""`Page`: a part of a long list, and the cursor to the next one."""

from __future__ import annotations

from typing import Generic, TypeVar

from kaged.base.lazy_dataclass import dataclass
from kaged.store.errors import StoreError

T = TypeVar("T")

PAGE_DEFAULT = 100
PAGE_LIMIT = 1000
_CURSOR_LIMIT_CHARS = 40


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items, and the cursor that asks for the next ones; None behind the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


def encode_cursor(position: int) -> str:
    """Write a position as the opaque text that callers hand back."""
    return f"c{position}"


def parse_cursor(cursor: str | None) -> int | None:
    """Read a cursor that came from outside.

    Raises:
        StoreError: `invalid_cursor`; it is not one of ours.
    """
    if cursor is None:
        return None
    digits = cursor[1:]
    if (
        not cursor.startswith("c")
        or len(cursor) > _CURSOR_LIMIT_CHARS
        or not (digits.isascii() and digits.isdigit())
        or int(digits) >= 2**63
    ):
        raise StoreError(
            "this is not a cursor of this list", code="invalid_cursor", fix="begin without a cursor"
        )
    return int(digits)


def clamp_limit(limit: int | None) -> int:
    """Return a page size within what one answer may hold."""
    return PAGE_DEFAULT if limit is None else max(1, min(limit, PAGE_LIMIT))
