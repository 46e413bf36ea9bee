"""`normalise_host`: the one spelling of a host, so that equal destinations are equal texts."""

from __future__ import annotations

import functools
import re
import unicodedata

from kaged.base.errors import KagedError
from kaged.kernel.addresses import address_class, canonical_address

MAX_HOST_CHARS = 253
"""The longest name DNS can carry."""

LOCALHOST = "localhost"
"""The name that stands for the loopback of the machine itself, never for the cage's own."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class NetTargetInvalid(KagedError):
    """The text names no destination."""

    code = "net_target_invalid"


def normalise_host(text: str) -> str:
    """Return a host's one spelling: lower case, A-labels, no trailing dot, canonical addresses.

    Brackets around an IPv6 address are taken off. What a resolver might read as an address but is
    not written as one (`127.1`, `0x7f000001`) is refused, and so is a name that IDNA would fold
    into another one (`straße.de` is not `strasse.de`).

    Raises:
        NetTargetInvalid: the text is neither a host name nor an address literal.
    """
    # Type checkers see to the rest; a gate hands in what a guest sent.
    if type(text) is not str or not 0 < len(text) <= MAX_HOST_CHARS + 2:
        raise NetTargetInvalid(f"a host has 1 to {MAX_HOST_CHARS} characters")
    return _normalise(text)


def is_local(host: str) -> bool:
    """Return whether a normalised host is a place that only a grant naming it may reach.

    That is `localhost` and every address literal that is not public.
    """
    if host == LOCALHOST:
        return True
    return canonical_address(host) is not None and address_class(host) != "public"


@functools.lru_cache(maxsize=4096)
def _normalise(text: str) -> str:
    bracketed = text.startswith("[") and text.endswith("]")
    address = canonical_address(text[1:-1] if bracketed else text)
    if address is not None and (not bracketed or ":" in text):
        return address
    name = text if text.isascii() else _a_labels(text)
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise NetTargetInvalid(
            f"{_shown(text)} is not a host name",
            fix="use letters, digits, hyphens and dots, or an address such as 192.0.2.1 or [::1]",
        )
    if _NUMBER.fullmatch(labels[-1]):
        raise NetTargetInvalid(
            f"{_shown(text)} ends in a number but is not an address",
            fix="write an IPv4 address as four plain decimal numbers",
        )
    return name


def _a_labels(text: str) -> str:
    lowered = unicodedata.normalize("NFC", text.lower())
    try:
        name = lowered.encode("idna").decode("ascii")
        same = name.encode("ascii").decode("idna") == lowered
    except UnicodeError:
        same, name = False, ""
    if not same:
        raise NetTargetInvalid(
            f"{_shown(text)} has no unambiguous ASCII form", fix="write the xn-- form of the name"
        )
    return name


def _shown(text: str) -> str:
    return ascii(text)
