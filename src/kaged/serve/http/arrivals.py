"""`arrival_of`: what policies may see of the request that somebody came with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kaged.kernel.call_facts import TRACEPARENT, Arrival, parse_traceparent, trace_id_of
from kaged.kernel.identity import Actor, VouchedBy

MAX_HEADER_CHARS: Final = 4096
_AUTHORIZATION: Final = "authorization"

# Who holds the operator's credential, as front ends do, says what is so. What a person or a
# program with a token of its own writes into headers is a claim, and policies could not tell.
_BELIEVED: Final = frozenset(
    {VouchedBy.UNIX, VouchedBy.BEARER, VouchedBy.COOKIE, VouchedBy.INSECURE}
)


def arrival_of(
    actor: Actor,
    headers: Sequence[tuple[bytes, bytes]],
    shown: Sequence[str],
    *,
    keep_token: bool = False,
) -> Arrival:
    """Return the trace of a request, and its headers as far as the operator lets them be seen.

    `keep_token` keeps the access token of a person, for policies that exchange it.
    """
    found: dict[str, list[str]] = {}
    wanted = {TRACEPARENT, _AUTHORIZATION, *shown}
    for name, value in headers:
        key = name.decode("latin-1").lower()
        if key in wanted:
            found.setdefault(key, []).append(value.decode("latin-1").strip())
    traces = found.get(TRACEPARENT, [])
    # Two of them are no header of the standard, so neither counts.
    trace_id = parse_traceparent(traces[0]) if len(traces) == 1 else None
    seen = None
    if shown and actor.vouched_by in _BELIEVED:
        texts = ((name, ", ".join(found[name])) for name in shown if name in found)
        seen = tuple((name, text) for name, text in texts if _is_plain(text))
    token = None
    if keep_token and actor.vouched_by is VouchedBy.ACCESS_TOKEN:
        token = found[_AUTHORIZATION][0].partition(" ")[2].strip()
    return Arrival(trace_id or trace_id_of(actor.request_id), seen, token)


def _is_plain(text: str) -> bool:
    return len(text) <= MAX_HEADER_CHARS and text.isprintable()
