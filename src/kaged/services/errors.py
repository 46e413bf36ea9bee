"""Every way a capability call fails: `CapabilityError`, with a subclass where one is caught."""

from __future__ import annotations

from typing import ClassVar, Final

from kaged.base import JsonValue, KagedError


class CapabilityError(KagedError, ValueError):
    """A capability call that ended without an output.

    `code` is the stable word that clients branch on; `retryable` says whether the same call may
    succeed later without anybody changing anything. The message is safe to show to a sandbox.
    """

    code = "capability_internal_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, code: str | None = None, fix: str | None = None, **data: JsonValue
    ) -> None:
        super().__init__(message, code=code, fix=fix, **data)
        # For the audit record alone, such as a bridge's own words; never sent to a sandbox.
        self.noted: dict[str, JsonValue] = {}
        # With `capability_auth_required`: the service was asked and said no.
        self.refused = False


class CapabilityInvalidInput(CapabilityError):
    """An id, a parameter, an input or a registration is malformed."""

    code = "capability_invalid_input"


class CapabilityNotFound(CapabilityError):
    """The id is well formed and no provider offers it."""

    code = "capability_not_found"


class CapabilityAuthFlowInvalid(CapabilityError):
    """The flow is unknown, expired, used or somebody else's; the text is the same for all."""

    code = "capability_auth_flow_invalid"


class CapabilityAuthFlowExpired(CapabilityError):
    """The provider says that its side of the flow has expired."""

    code = "capability_auth_flow_expired"


class CapabilityAuthFlowDenied(CapabilityError):
    """The person, or the provider, refused the consent."""

    code = "capability_auth_flow_denied"


class CapabilityInvalidOutput(CapabilityError):
    """The provider's answer breaks the envelope or its schema, or holds a credential."""

    code = "capability_invalid_output"


class CapabilityBackendUnavailable(CapabilityError):
    """The provider, its process, its upstream or the audit log cannot be used now."""

    code = "capability_backend_unavailable"
    retryable: ClassVar[bool] = True


class OutcomeLost(CapabilityBackendUnavailable):
    """The provider was asked and never properly answered: what it did is not known."""


class VaultLocked(CapabilityError):
    """The key that a credential was encrypted with is gone; the rest of the daemon works."""

    code = "capability_vault_locked"

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message or "the key of the vault is missing or another one, so this does not open",
            fix="Put the key back from a backup and restart the daemon, or link the account again.",
        )


class CapabilityRateLimited(CapabilityError):
    """Too many calls, or too many pending flows; `retry_after_seconds` says when to come back."""

    code = "capability_rate_limited"
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)


class CapabilityInternalError(CapabilityError):
    """A fault of the host; the text never says more than that."""

    code = "capability_internal_error"
    retryable: ClassVar[bool] = True


def auth_required(message: str) -> CapabilityError:
    """Return the error for an account that must be linked, or linked again, first."""
    return CapabilityError(message, code="capability_auth_required")


def account_refused(message: str) -> CapabilityError:
    """Return the error for an account that its service no longer accepts."""
    error = auth_required(message)
    error.refused = True
    return error


_CLASSES: Final = {
    kind.code: kind
    for kind in (
        CapabilityInvalidInput,
        CapabilityNotFound,
        CapabilityAuthFlowInvalid,
        CapabilityAuthFlowExpired,
        CapabilityAuthFlowDenied,
        CapabilityInvalidOutput,
        CapabilityBackendUnavailable,
        CapabilityInternalError,
    )
}


_OWN_CODES: Final = frozenset(
    {CapabilityRateLimited.code, VaultLocked.code, "capability_auth_required"}
)


def is_own_code(code: str) -> bool:
    """Return whether a code is a word of ours, which tells nobody's secret."""
    return code in _CLASSES or code in _OWN_CODES


def provider_error(code: str, message: str) -> CapabilityError:
    """Make the error for a code that a provider chose; the message must be scrubbed already.

    Bridges may bring codes of their own (SC-AMB-14), and those travel as they are.
    """
    if code == CapabilityRateLimited.code:
        return CapabilityRateLimited(message, retry_after_seconds=60)
    if code == VaultLocked.code:
        return VaultLocked(message)
    return _CLASSES.get(code, CapabilityError)(message, code=code)
