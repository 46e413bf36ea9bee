"""Whom a request is made for: from what let the caller in to the `CallerIdentity` of its calls."""

from __future__ import annotations

from kaged.serve.http.access import HttpCaller
from kaged.tools.context import CallerIdentity

OWN_PROVIDER = "kaged"
PRIVATE = "private"


def caller_identity(caller: HttpCaller) -> CallerIdentity | None:
    """Return which person a caller acts for, and in which chat (SC-AMB-38).

    The operator's own listeners are a private chat of the operator's. A trusted front end speaks
    for the person it names, in a chat of the type it states, or of none. Insecure mode knows
    nobody.
    """
    if caller.operator_id is None:
        return None
    if caller.front_end is not None:
        return CallerIdentity(
            caller.operator_id,
            chat_type=caller.front_end.chat_type,
            chat_id=caller.front_end.chat_id,
        )
    return CallerIdentity(caller.operator_id, chat_type=PRIVATE, provider=OWN_PROVIDER)
