"""Pages of flows: which flows can still be completed, and which pages a restart opens again."""

from __future__ import annotations

import structlog

from kaged.base import JsonObject, KagedError
from kaged.services.contract import AuthResumeCall, ResumingProvider
from kaged.services.registry import RegisteredCapability
from kaged.store.service_rows import FlowRow

_log = structlog.get_logger("kaged.services")


async def is_alive(capability: RegisteredCapability, row: FlowRow, flow_state: JsonObject) -> bool:
    """Return whether a pending flow can still be completed; a page that a restart shut is opened.

    Flows of bridges and authorization servers count as alive: their pages are not ours.
    """
    provider = capability.provider.provider
    if not isinstance(provider, ResumingProvider):
        return True
    try:
        return await provider.auth_resume(_call(row, flow_state))
    except KagedError as error:
        _log.warning("flow.not_resumed", provider=capability.provider.name, error=error.code)
        return False


def close_page(
    capability: RegisteredCapability | None, row: FlowRow, flow_state: JsonObject
) -> None:
    """Close the page of a flow that was given up, where it is one of ours."""
    provider = None if capability is None else capability.provider.provider
    if isinstance(provider, ResumingProvider):
        provider.auth_cancel(_call(row, flow_state))


def _call(row: FlowRow, flow_state: JsonObject) -> AuthResumeCall:
    return AuthResumeCall(row.auth_url, row.expires_at_ms, flow_state)
