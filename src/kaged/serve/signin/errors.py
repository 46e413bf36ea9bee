"""What can go wrong when somebody signs in."""

from __future__ import annotations

from kaged.base import KagedError


class SignInUnavailable(KagedError):
    """The provider cannot be asked now, or is not what the configuration says."""

    code = "sign_in_unavailable"


class SignInRefused(KagedError):
    """The flow, or what the provider said, is not accepted."""

    code = "sign_in_refused"


class SignInNotAllowed(KagedError):
    """The provider knows the person, and the operator does not let them in."""

    code = "sign_in_not_allowed"


class TokenRefused(KagedError):
    """An access token is not one of ours, or not any more."""

    code = "unauthenticated"
