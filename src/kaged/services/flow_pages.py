"""Pages of flows: which flows can still be completed, and which pages a restart opens again."""

from __future__ import annotations

from kaged.base import KagedError
from kaged.base.log import get_logger
from kaged.services.contract import AuthResumeCall, ResumingProvider
from kaged.services.flow import Flow
from kaged.services.registry import RegisteredCapability

_log = get_logger("kaged.services")


async def is_alive(capability: RegisteredCapability, flow: Flow) -> bool:
    """Return whether a pending flow can still be completed; a page that a restart shut is opened.

    Flows of bridges and authorization servers count as alive: their pages are not ours.
    """
    provider = capability.provider.provider
    if not isinstance(provider, ResumingProvider):
        return True
    try:
        return await provider.auth_resume(_call(flow))
    except KagedError as error:
        _log.warning("flow.not_resumed", provider=capability.provider.name, error=error.code)
        return False


def close_page(capability: RegisteredCapability | None, flow: Flow) -> None:
    """Close the page of a flow that was given up, where it is one of ours."""
    provider = None if capability is None else capability.provider.provider
    if isinstance(provider, ResumingProvider):
        provider.auth_cancel(_call(flow))


def _call(flow: Flow) -> AuthResumeCall:
    row = flow.row
    return AuthResumeCall(
        flow.auth_url,
        row.expires_at_ms,
        flow.flow_state,
        row.capability_id,
        row.user_id,
        flow.begun_by,
    )
