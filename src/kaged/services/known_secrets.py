"""What of a credential must never be seen again: `secret_texts`, by its key or by its looks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from kaged.audit.credentials import is_secret_key
from kaged.base import JsonValue

SHORTEST_CHARS: Final = 6  # anything shorter would be found in ordinary words
SECRETS_LIMIT: Final = 256
_RANDOM_CHARS: Final = 20
_RANDOM_BITS: Final = 3.2  # bits per character; English words and names stay below

_OPAQUE = re.compile(r"[A-Za-z0-9+/=_.~:-]+")
_DATES = re.compile(r"[0-9TZ:.+-]+")
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://|[\w.+-]+@)", re.IGNORECASE)


def looks_random(text: str) -> bool:
    """Return whether a text looks random, made by a machine: long, one piece, no pattern.

    Addresses, dates and plain words do not.
    """
    if len(text) < _RANDOM_CHARS or _OPAQUE.fullmatch(text) is None:
        return False
    if _DATES.fullmatch(text) or _ADDRESS.match(text):
        return False
    if not (any(c.isdigit() for c in text) or text.lower() != text != text.upper()):
        return False
    counts = Counter(text)
    size = len(text)
    bits = -sum(n / size * math.log2(n / size) for n in counts.values())
    return bits >= _RANDOM_BITS


def secret_texts(value: JsonValue) -> tuple[str, ...]:
    """Collect the texts of a credential that are secret: by their key, or by their looks.

    A user name or an address beside them is not, or no mail could ever be listed.
    """
    found: dict[str, None] = {}
    waiting: list[tuple[str, JsonValue]] = [("", value)]
    while waiting and len(found) < SECRETS_LIMIT:
        key, one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.items())
        elif isinstance(one, list):
            waiting.extend((key, item) for item in one)
        elif (
            isinstance(one, str)
            and len(one) >= SHORTEST_CHARS
            and (is_secret_key(key) or looks_random(one))
        ):
            found[one] = None
    return tuple(found)


def configured_secrets(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret ones among the variables of a provider's section."""
    return tuple(
        value for name, value in variables.items() if is_secret_key(name) or looks_random(value)
    )
