"""How many tokens a text takes, as far as anybody can say without the vendor's own counter. Pure.

The estimate is by length and then corrected with what the vendor counted for the same window, so
that it gets better with every turn.
"""

from __future__ import annotations

import json
from typing import Final

from kaged.base import JsonValue

BYTES_PER_TOKEN: Final = 4
MESSAGE_OVERHEAD: Final = 4
"""What roles and separators around a message take."""

_LOWEST, _HIGHEST = 0.5, 3.0


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text; every four bytes count as one."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def estimate_json(value: JsonValue) -> int:
    """Estimate the tokens of a value as it stands in a request."""
    return estimate_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


class TokenGauge:
    """Corrects estimates by what the vendor counted for the last request of the same window."""

    __slots__ = ("_factor",)

    def __init__(self) -> None:
        self._factor = 1.0

    def learn(self, estimated: int, counted: int) -> None:
        """Take note of a request's estimate and of what the vendor counted for it.

        A count that is far off says more about the vendor's accounting (cached parts, pictures)
        than about the text; it moves the correction within bounds only.
        """
        if estimated > 0 and counted > 0:
            self._factor = min(max(counted / estimated, _LOWEST), _HIGHEST)

    def tokens(self, estimated: int) -> int:
        """Return an estimate with the correction applied."""
        return round(estimated * self._factor)
