"""`model_error`: what a vendor's library raises, as one of our errors. Loaded with a vendor."""

from __future__ import annotations

from typing import Final

from pydantic_ai import exceptions as vendor

from kaged.audit.credentials import mask_secrets
from kaged.config.secret import Secret
from kaged.models import errors
from kaged.models.answer import clean_text

SAYS_CHARS: Final = 300
MAX_CAUSES: Final = 16

_PASSING: Final = (
    vendor.ModelUnavailableError,
    vendor.ModelServerError,
    vendor.ModelConnectionError,
    vendor.ModelRequestTimeout,
    TimeoutError,
    OSError,
)
_NETWORK_OF_AWS: Final = frozenset(
    {
        "ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError",
        "HTTPClientError", "ReadTimeoutError", "ResponseStreamingError",
    }
)  # fmt: skip
_PASSING_STATUSES: Final = frozenset({408, 409, 425, 429})


def model_error(error: BaseException, alias: str, key: Secret[str] | None) -> errors.ModelError:
    """Return our error for a vendor's; what the vendor wrote is cut short and holds no key."""
    ours = _own_cause(error)
    if ours is not None:
        return ours
    says = _says(error, key)
    after_s = error.retry_after if isinstance(error, vendor.ModelAPIError) else None
    if isinstance(error, vendor.ModelContextWindowExceededError):
        return errors.ModelContextExceeded(
            f"The window is larger than what {alias} takes.",
            fix="Compact the session, or set context_window for the model.",
            vendor_says=says,
        )
    if isinstance(error, vendor.ModelRateLimitError):
        return errors.ModelRateLimited(
            f"The vendor of {alias} limits the rate of requests.",
            fix="Wait, or name fallbacks for the model.",
            retry_after_s=after_s,
            vendor_says=says,
        )
    if isinstance(error, vendor.ModelQuotaExceededError):
        return errors.ModelRefused(
            f"The account behind {alias} has no credit left.",
            fix="Top it up, or use another model.",
            vendor_says=says,
        )
    if isinstance(error, vendor.ModelAuthenticationError):
        return errors.ModelRefused(
            f"The vendor of {alias} does not accept the key.",
            fix=f"Check api_key in [models.{alias}] of local.toml.",
            vendor_says=says,
        )
    if isinstance(error, vendor.ModelNotFoundError):
        return errors.ModelRefused(
            f"The vendor of {alias} has no such model.",
            fix=f"Check model and base_url in [models.{alias}] of local.toml.",
            vendor_says=says,
        )
    if isinstance(error, (vendor.ModelRequestRejectedError, vendor.ContentFilterError)):
        return errors.ModelRefused(f"The vendor of {alias} rejected the request.", vendor_says=says)
    return _by_kind(error, alias, says, after_s)


def _by_kind(
    error: BaseException, alias: str, says: str, after_s: float | None
) -> errors.ModelError:
    passing = (
        isinstance(error, _PASSING)
        or _is_of_network(error)
        or (
            # The base class is what an answer without an end becomes, and one that is no JSON.
            isinstance(error, vendor.ModelAPIError)
            and not isinstance(error, vendor.ModelHTTPError)
            and not isinstance(error.__cause__, ValueError)
        )
    )
    if isinstance(error, vendor.ModelHTTPError) and not passing:
        passing = error.status_code >= 500 or error.status_code in _PASSING_STATUSES
        if not passing:
            return errors.ModelRefused(
                f"The server behind {alias} answers with status {error.status_code}.",
                fix=f"Check base_url in [models.{alias}] of local.toml.",
                vendor_says=says,
            )
    if passing:
        return errors.ModelUnavailable(
            f"{alias} cannot be reached, or broke off: {_gist(error)}.",
            fix="Try again later, or name fallbacks for the model.",
            retry_after_s=after_s,
            vendor_says=says,
        )
    if isinstance(error, (vendor.UserError, ImportError)) or _is_of_aws(error):
        return errors.ModelRefused(
            f"{alias} cannot be used as it is written in local.toml.",
            fix="See vendor_says; `kaged model check` tries it.",
            vendor_says=says,
        )
    return errors.ModelBadAnswer(
        f"The server behind {alias} sent an invalid answer.", vendor_says=says
    )


def _is_of_network(error: BaseException) -> bool:
    return _is_of_aws(error) and type(error).__name__ in _NETWORK_OF_AWS


def _is_of_aws(error: BaseException) -> bool:
    """Return whether the library of AWS raised it before anything was sent: no keys, no region."""
    return type(error).__module__ == "botocore.exceptions"


def _gist(error: BaseException) -> str:
    if isinstance(error, vendor.ModelHTTPError):
        return f"status {error.status_code}"
    if isinstance(error, (TimeoutError, vendor.ModelTimeoutError, vendor.ModelRequestTimeout)):
        return "it took too long"
    if isinstance(error, vendor.ModelConnectionError):
        return "the connection failed" if error.phase in {"pool", "connect"} else "it was cut off"
    return "it was cut off"


def _own_cause(error: BaseException | None) -> errors.ModelError | None:
    for _ in range(MAX_CAUSES):
        if error is None or isinstance(error, errors.ModelError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _says(error: BaseException, key: Secret[str] | None) -> str:
    body = error.body if isinstance(error, vendor.ModelAPIError) else None
    said = body.get("message") if isinstance(body, dict) else None
    text = said if isinstance(said, str) else str(error)
    if key is not None and key.reveal():
        text = text.replace(key.reveal(), "[redacted]")
    text = clean_text(mask_secrets(" ".join(text[: 10 * SAYS_CHARS].split())))
    return text if len(text) <= SAYS_CHARS else text[: SAYS_CHARS - 1] + "…"
