"""`TokenKey`: what context tokens are signed with, and the one-way keys that bridges get."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from dataclasses import field

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass

SECRET_VARIABLE = "ASH_CONTEXT_TOKEN_SECRET"  # noqa: S105 - the name of a variable, not a secret
KEY_BYTES = 32
MIN_KEY_BYTES = 16

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9_-]*")
# Changing the label changes every bridge's key; it ends in a zero byte so that no namespace can
# run into it.
_BRIDGE_LABEL = b"kaged context token key for bridge v1\x00"
_SIDECAR_LABEL = b"kaged context token key for sidecar v1\x00"


class TokenKeyInvalid(KagedError):
    """The configured signing secret is blank or too short."""

    code = "token_key_invalid"


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A signing key. Its bytes never show in a repr, a log line or an error.

    Raises:
        TokenKeyInvalid: there are fewer than 16 bytes.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a key that can be guessed."""
        if len(self.secret) < MIN_KEY_BYTES:
            raise TokenKeyInvalid(
                f"the signing secret has fewer than {MIN_KEY_BYTES} bytes",
                fix=f"set {SECRET_VARIABLE} to {KEY_BYTES} random bytes in hex or base64url",
            )

    def sign(self, text: bytes) -> bytes:
        """Return the HMAC-SHA256 of a text."""
        return hmac.digest(self.secret, text, "sha256")

    def for_bridge(self, namespace: str) -> TokenKey:
        """Derive the key of one bridge (SC-AMB-11).

        It is one-way: a bridge can check the tokens made for it, and can make none for the host
        or for another bridge.
        """
        if _NAMESPACE.fullmatch(namespace) is None:
            raise ValueError(f"not a namespace: {namespace!r}")
        return TokenKey(self.sign(_BRIDGE_LABEL + namespace.encode("ascii")))

    def for_sidecar(self, name: str) -> TokenKey:
        """Derive the key of one sidecar of a provider, one-way as a bridge's."""
        return TokenKey(self.sign(_SIDECAR_LABEL + name.encode()))

    def export_text(self) -> str:
        """Return the text for a bridge's environment, which `parse_key` reads back.

        Only for 32-byte keys: their 43 characters are an odd number, so nobody can take the text
        for hex.
        """
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"only a key of {KEY_BYTES} bytes has an unmistakable text form")
        return base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode("ascii")


def parse_key(text: str) -> TokenKey:
    """Read a signing secret from its text, as every bridge reads it too.

    Blanks around it are cut. An even number of hex digits are hex; else what base64url decodes to,
    if it decodes; else the text's own bytes. The lenient base64 decoder of the standard library is
    used on purpose: bridges use it, and both ends must arrive at the same bytes.

    Raises:
        TokenKeyInvalid: the text is blank or the key too short.
    """
    trimmed = text.strip()
    if _HEX.fullmatch(trimmed):
        return TokenKey(bytes.fromhex(trimmed))
    padding = "=" * (-len(trimmed) % 4)
    try:
        decoded = base64.urlsafe_b64decode(trimmed + padding)
    except (binascii.Error, ValueError):  # ValueError: characters outside ASCII
        decoded = b""
    return TokenKey(decoded or trimmed.encode("utf-8"))
