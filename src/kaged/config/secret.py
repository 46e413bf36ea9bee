"""`Secret`: a value that can be used but not printed by accident."""

from __future__ import annotations

import hmac
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")

HIDDEN = "Secret(hidden)"


class Secret(Generic[T]):
    """Holds a value that never shows in `repr`, `str`, formatting, tracebacks of repr or pickles.

    Only `reveal` gives it back, so every use can be found by searching for that word.
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def reveal(self) -> T:
        """Return the value. Call it where the value is used, not earlier."""
        return self.__value

    def __repr__(self) -> str:
        return HIDDEN

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = self.reveal(), other.reveal()
        if isinstance(mine, str) and isinstance(theirs, str):
            return hmac.compare_digest(mine.encode(), theirs.encode())
        return bool(mine == theirs)

    def __hash__(self) -> int:
        # A constant: a hash of the value would be a fingerprint of it.
        return hash(HIDDEN)

    def __bool__(self) -> bool:
        return bool(self.__value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written anywhere; call reveal() where it is used")
