"""`ask_provider`: every call of a provider, in process or bridge, under one timeout and one rule.

What a provider raises on purpose reaches the caller, scrubbed; whatever else it raises becomes
"unavailable", and its text goes nowhere but the operator's log, masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import structlog

from kaged.base import KagedError
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidOutput,
    CapabilityRateLimited,
    OutcomeLost,
    provider_error,
)
from kaged.services.known_secrets import scrub
from kaged.services.registry import ProviderEntry

T = TypeVar("T")

_log = structlog.get_logger("kaged.services")


async def ask_provider(
    entry: ProviderEntry, call: Awaitable[T], *, secrets: tuple[str, ...] = ()
) -> T:
    """Await a provider's answer.

    Raises:
        CapabilityError: what the provider said, or that it did not answer properly.
    """
    try:
        async with asyncio.timeout(entry.rules.timeout_s):
            return await call
    except TimeoutError:
        raise OutcomeLost(f"{entry.name} did not answer in time") from None
    except CapabilityError as error:
        said = _said(error, secrets)
        said.noted.update(error.noted)
        raise said from None
    except KagedError as error:
        _log.warning("provider.failed", provider=entry.name, code=error.code)
        if error.code == CapabilityInvalidOutput.code:
            raise CapabilityInvalidOutput(scrub(error.message, secrets)) from None
        raise OutcomeLost(f"{entry.name} failed") from None
    # Boundary: a provider may raise anything at all; no text of it goes to the caller (SC-SEC-08).
    except Exception as error:  # noqa: BLE001 - see above
        _log.warning(
            "provider.failed",
            provider=entry.name,
            error=type(error).__name__,
            detail=scrub(str(error), secrets),
        )
        raise OutcomeLost(f"{entry.name} failed") from None


def _said(error: CapabilityError, secrets: tuple[str, ...]) -> CapabilityError:
    """Return a provider's error anew, with a scrubbed message and nothing attached."""
    message = scrub(error.message, secrets) or "the provider gave no reason"
    if isinstance(error, OutcomeLost):
        return OutcomeLost(message)
    if isinstance(error, CapabilityRateLimited):
        wait = error.data.get("retry_after_seconds")
        seconds = wait if isinstance(wait, int) and 0 < wait <= 86_400 else 60
        return CapabilityRateLimited(message, retry_after_seconds=seconds)
    if error.code == CapabilityBackendUnavailable.code:
        return CapabilityBackendUnavailable(message)
    return provider_error(error.code, message)
