"""`Arrival` and `ModelIdentity`: what is known of a call beside who makes it.

Pure values. Ids of traces have the form of W3C Trace Context, so that other programs can follow a
call through the daemon.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import field
from typing import Final

from kaged.base.lazy_dataclass import dataclass

TRACEPARENT: Final = "traceparent"

_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_LATER_VERSION: Final = re.compile(_TRACEPARENT.pattern + r"(-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_FIRST_VERSION: Final = "00"
MAX_TRACEPARENT_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class Arrival:
    """The request with which somebody came to the daemon, as far as policies may see it.

    `headers` are those that the operator lets policies see, by names in lower case; None where
    the caller's headers say nothing that was checked. `trace_id` is the caller's, or made here.
    `token` is the access token that the person came with, where it may be exchanged for others.
    """

    trace_id: str
    headers: tuple[tuple[str, str], ...] | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model an agent works with: the operator's name for it, and whose it is."""

    alias: str
    model_id: str
    provider: str
    traits: tuple[str, ...] = ()


def parse_traceparent(text: str | None) -> str | None:
    """Return the trace id in a `traceparent` header; None when it is none that can be used."""
    if text is None or len(text) > MAX_TRACEPARENT_CHARS:
        return None
    found = _LATER_VERSION.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id = found.group(1), found.group(2), found.group(3)
    if version == _FIRST_VERSION and _TRACEPARENT.fullmatch(text) is None:
        return None
    return None if trace_id == _NO_TRACE or span_id == _NO_SPAN else trace_id


def trace_id_of(seed: str) -> str:
    """Return the trace id of a run or a request that came without one; the same each time."""
    return hashlib.sha256(f"kaged trace {seed}".encode()).hexdigest()[:32]


def span_id_of(request_id: str) -> str:
    """Return the id of one call's span."""
    return hashlib.sha256(f"kaged span {request_id}".encode()).hexdigest()[:16]
