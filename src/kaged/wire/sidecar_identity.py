"""`SidecarIdentity`: which sidecar a token is for; the one place where these are made and checked.

A sidecar is a helper process of a provider that answers on loopback. It serves one scope (one
person) and one target (one capability). Its tokens name all of it, and its key makes none for
another sidecar.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field

from kaged.base.clock import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.wire.strictjson import NotJson, decode_json
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims, TokenRejected, mint_token, verify_token

SIDECAR_VARIABLE = "ASH_SIDECAR"
CALL_PATH = "/call"
TOKEN_TTL_S = 600  # SC-AMB-36
MIN_TTL_S = 10
_SUBJECT = "kaged-host"


@dataclass(frozen=True, slots=True)
class SidecarIdentity:
    """Which sidecar: of which provider, for which scope, for what."""

    provider: str
    scope: str
    target: str
    key: TokenKey = field(repr=False)

    @classmethod
    def derived(cls, provider: str, scope: str, target: str, key: TokenKey) -> SidecarIdentity:
        """Return an identity with a key of its own, made one-way from the provider's."""
        name = json.dumps([provider, scope, target])
        return cls(provider, scope, target, key.for_sidecar(name))

    @classmethod
    def read(cls, text: str, key: TokenKey) -> SidecarIdentity:
        """Read what the host wrote into the environment of a sidecar. Raises ValueError."""
        try:
            said = decode_json(text.encode(), max_depth=4, unique_keys=True)
        except NotJson:
            said = None
        if isinstance(said, dict):
            match said.get("provider"), said.get("scope"), said.get("target"):
                case str() as provider, str() as scope, str() as target:
                    return cls(provider, scope, target, key)
                case _:
                    pass
        raise ValueError(f"{SIDECAR_VARIABLE} names no provider, scope and target")

    @property
    def text(self) -> str:
        """What the host writes into the environment of the sidecar."""
        return json.dumps({"provider": self.provider, "scope": self.scope, "target": self.target})

    @property
    def id(self) -> str:
        """A name that two scopes never share, for processes and directories."""
        parts = json.dumps([self.provider, self.scope, self.target]).encode()
        return f"sidecar-{hashlib.sha256(parts).hexdigest()[:32]}"

    def token(self, clock: Clock, ttl_s: int = TOKEN_TTL_S) -> str:
        """Make a token for one request, alive for ten seconds to ten minutes."""
        return mint_token(
            self.key,
            _SUBJECT,
            clock=clock,
            routing=RoutingClaims(
                provider=self.provider, session_key=self.scope, thread_id=self.target
            ),
            audience=f"sidecar:{self.provider}",
            ttl_s=max(MIN_TTL_S, min(ttl_s, TOKEN_TTL_S)),
        )

    def admits(self, token: str, clock: Clock) -> bool:
        """Return whether a token is this sidecar's: subject, provider, scope and target."""
        try:
            found = verify_token(
                self.key,
                token,
                clock=clock,
                audience=f"sidecar:{self.provider}",
                audience_required=True,
                max_lifetime_s=TOKEN_TTL_S,
            )
        except TokenRejected:
            return False
        routing = found.routing
        theirs = (routing.provider, routing.session_key, routing.thread_id)
        own = (self.provider, self.scope, self.target)
        return found.effective_user_id == _SUBJECT and theirs == own
