"""`ask_provider`: every call of a provider, in process or bridge, under one timeout and one rule.

What a provider raises on purpose reaches the caller, scrubbed; whatever else it raises becomes
"unavailable", and its text goes nowhere but the operator's log, masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from kaged.base import KagedError
from kaged.base.log import get_logger
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidOutput,
    CapabilityRateLimited,
    OutcomeLost,
    is_own_code,
    provider_error,
)
from kaged.services.registry import ProviderEntry
from kaged.services.secret_search import CallSecrets

T = TypeVar("T")

_log = get_logger("kaged.services")


async def ask_provider(entry: ProviderEntry, call: Awaitable[T], secrets: CallSecrets) -> T:
    """Await a provider's answer.

    What it raises is searched for the `secrets` that are known by then, so that a token that was
    renewed within the call is among them.

    Raises:
        CapabilityError: what the provider said, or that it did not answer properly.
    """
    try:
        async with asyncio.timeout(entry.rules.timeout_s):
            return await call
    except TimeoutError:
        raise OutcomeLost(f"{entry.name} did not answer in time") from None
    except CapabilityError as error:
        said = scrubbed_error(error, secrets)
        said.refused = error.refused
        for name, value in error.noted.items():
            said.noted[name] = secrets.scrub(value) if isinstance(value, str) else value
        raise said from None
    except KagedError as error:
        _log.warning("provider.failed", provider=entry.name, code=error.code)
        if error.code == CapabilityInvalidOutput.code:
            raise CapabilityInvalidOutput(secrets.scrub(error.message)) from None
        raise OutcomeLost(f"{entry.name} failed") from None
    except asyncio.CancelledError:
        raise
    # Boundary: a provider may raise anything at all; no text of it goes to the caller (SC-SEC-08).
    except BaseException as error:  # noqa: BLE001 - see above
        _log.warning(
            "provider.failed",
            provider=entry.name,
            error=type(error).__name__,
            detail=secrets.scrub(str(error)),
        )
        raise OutcomeLost(f"{entry.name} failed") from None


def scrubbed_error(error: CapabilityError, secrets: CallSecrets) -> CapabilityError:
    """Return a provider's error anew, with a scrubbed message and nothing attached."""
    message = secrets.scrub(error.message) or "the provider gave no reason"
    if isinstance(error, OutcomeLost):
        return OutcomeLost(message)
    if isinstance(error, CapabilityRateLimited):
        wait = error.data.get("retry_after_seconds")
        seconds = wait if isinstance(wait, int) and 0 < wait <= 86_400 else 60
        return CapabilityRateLimited(message, retry_after_seconds=seconds)
    # A code that is not ours is a word of the provider's too.
    leaks = not is_own_code(error.code) and secrets.found_in_text(error.code)
    if error.code == CapabilityBackendUnavailable.code or leaks:
        return CapabilityBackendUnavailable(message)
    return provider_error(error.code, message)
