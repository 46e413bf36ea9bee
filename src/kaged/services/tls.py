"""TLS of the services behind providers: whom to trust, and what was wrong with a connection."""

from __future__ import annotations

import ssl
from pathlib import Path

from kaged.base.authorities import authorities
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityInvalidInput

_CHAIN_LIMIT = 8


def require_ca_file(path: Path) -> str:
    """Return the path of a file with certificates of authorities.

    Raises:
        CapabilityInvalidInput: it cannot be read, or holds none.
    """
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError):
        raise CapabilityInvalidInput(f"ca_file holds no certificates: {path}") from None
    return str(path)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Return what certificates are checked with: the machine's authorities, and those of a file.

    Both, because an API of one's own may have its authorization server elsewhere.
    """
    return authorities() if ca_file is None else authorities(ca_file)


def tls_fault(error: BaseException, what: str) -> CapabilityBackendUnavailable | None:
    """Return the error for a connection that failed because of TLS; None when it did not.

    The words are the library's and name certificates, never what was sent.
    """
    cause: BaseException | None = error
    for _ in range(_CHAIN_LIMIT):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CapabilityBackendUnavailable(
                f"the certificate of {what} is not accepted: {cause.verify_message}"
                " (a private authority is named with ca_file)"
            )
        if isinstance(cause, ssl.SSLError):
            reason = (cause.reason or "no reason given").replace("_", " ").lower()
            return CapabilityBackendUnavailable(f"TLS with {what} failed: {reason}")
        if cause is None:
            return None
        cause = cause.__cause__ or cause.__context__
    return None
