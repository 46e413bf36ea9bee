"""`outgoing_headers`: what policies put on a request that a call sends elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaged.kernel.outgoing_headers import sendable_headers
from kaged.tools.policy_answer import policy_answer

if TYPE_CHECKING:
    from kaged.pipeline.hooked_call import HookedCall


async def outgoing_headers(
    hooked: HookedCall,
    target: str,
    endpoint: str,
    *,
    kind: str = "tool",
    permissions: tuple[str, ...] = (),
    asked: Mapping[str, str] | None = None,
    undone: str = "the call was not made",
) -> dict[str, str]:
    """Return the headers that policies added, with the token that one of them got for the target.

    `asked` are those that a policy put into the call itself.

    Raises:
        PipelineRefused: a policy gives no token for this.
        ReportedError: one failed whose failure ends the call.
    """
    wanted = {**hooked.added_headers, **(asked or {})}
    if hooked.delegates:
        question = hooked.delegate(target, kind, endpoint, list(permissions))
        outcome = await policy_answer(question, undone=undone)
        if outcome.changed:
            wanted |= _granted(outcome.payload)
    return sendable_headers(wanted)


def _granted(result: Any) -> dict[str, str]:
    headers = {str(name).lower(): str(value) for name, value in result.forwarded_headers.items()}
    if result.delegated_token:
        headers["authorization"] = f"Bearer {result.delegated_token}"
    return headers
