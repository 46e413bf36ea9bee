"""PKCE and state for providers that speak OAuth: `new_pkce`, `new_state`."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field

VERIFIER_BYTES = 48  # 64 characters; the standard allows 43 to 128
STATE_BYTES = 24


@dataclass(frozen=True, slots=True)
class Pkce:
    """A verifier, which stays in the encrypted flow state, and its challenge, which travels."""

    verifier: str = field(repr=False)
    challenge: str
    method: str = "S256"


def new_pkce() -> Pkce:
    """Make a fresh verifier and its S256 challenge."""
    verifier = secrets.token_urlsafe(VERIFIER_BYTES)
    return Pkce(verifier, challenge_of(verifier))


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a verifier."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def new_state() -> str:
    """Make an unguessable state for one callback."""
    return secrets.token_urlsafe(STATE_BYTES)
