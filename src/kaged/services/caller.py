"""`ServiceCaller`: who calls and from where, out of a verified token and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor, chat_key
from kaged.services.contract import CapabilityCallContext
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import (
    LEEWAY_S,
    SANDBOX_TTL_S,
    RoutingClaims,
    VerifiedToken,
    mint_token,
    verify_token,
)

TOKEN_PARAM: Final = "context_token"  # noqa: S105 - the name of a parameter, not a secret

SEEN_LIMIT: Final = 512

# Parameter → claim. Whatever a sandbox puts there is replaced by the claim, or removed without one.
_PROJECTED: Final = {
    "chat_id": "chat_id",
    "chat_type": "chat_type",
    "chat_title": "chat_title",
    "session_key": "session_key",
    "thread_id": "thread_id",
    "source_username": "source_username",
    "source_display_name": "source_display_name",
    "source_user_id": "source_username",
    "source_user_name": "source_display_name",
    "username": "source_username",
    "message_id": "message_id",
    "current_user_message": "current_user_message",
    "timezone": "timezone",
    "provider": "provider",
}
_SHOWN: Final = tuple(one.name for one in fields(CapabilityCallContext))[1:]  # all but the user
IDENTITY_PARAMS: Final = frozenset({"user_id", *_PROJECTED})


@dataclass(frozen=True, slots=True)
class ServiceCaller:
    """A caller whose token was checked. `identity_fields` names what it claimed beside it.

    `in_person`: a person asks themselves, not an agent for them, so no skill is needed.
    `actor` is for whom the token was made, with what their source said of them; None when that is
    not known any more.
    """

    token: VerifiedToken
    context: CapabilityCallContext
    identity_fields: tuple[str, ...] = ()
    in_person: bool = False
    actor: Actor | None = None

    @property
    def user_id(self) -> str:
        """The user: exactly the token's `sub`."""
        return self.token.effective_user_id

    @property
    def chat(self) -> str | None:
        """By what the chat is known, that no other front end's chat has."""
        return chat_key(self.context.provider, self.context.chat_id)

    @property
    def chat_type(self) -> str | None:
        """The kind of chat, in lower case."""
        found = self.context.chat_type
        return None if found is None else found.lower()


class ContextTokens:
    """Makes the tokens of sandboxes, and reads them again."""

    def __init__(self, key: TokenKey, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        # A command makes many calls with one token: its signature is checked once, its time always.
        self._seen: dict[str, ServiceCaller] = {}
        # Policies see more of a person than a token has room for. Cages end with the daemon.
        self._made_for: dict[str, tuple[int, Actor]] = {}

    def mint(
        self,
        user_id: str | None,
        *,
        routing: RoutingClaims | None = None,
        skill: str | None = None,
        caps: tuple[str, ...] | None = None,
        ttl_s: int = SANDBOX_TTL_S,
        actor: Actor | None = None,
    ) -> str | None:
        """Make a token for one command of a session; None when no user is known (SC-TOK-12).

        `actor` is who it is made for, and stays here.
        """
        if user_id is None or not user_id.strip():
            return None
        token = mint_token(
            self._key,
            user_id,
            clock=self._clock,
            routing=routing or RoutingClaims(),
            skill=skill,
            caps=caps,
            ttl_s=ttl_s,
        )
        if actor is not None:
            self._remember(token, actor, ttl_s)
        return token

    def _remember(self, token: str, actor: Actor, ttl_s: int) -> None:
        now_s = self._clock.now_ms() // 1000
        known = self._made_for
        if len(known) >= SEEN_LIMIT:
            for old in [one for one, (until_s, _) in known.items() if until_s < now_s]:
                del known[old]
        known[token] = (now_s + ttl_s + LEEWAY_S, actor)

    def verify(self, token: JsonValue) -> VerifiedToken:
        """Check a token that a sandbox sent. Raises TokenRejected."""
        return self.caller(token).token

    def caller(self, token: JsonValue) -> ServiceCaller:
        """Check a token that a sandbox sent and return who calls. Raises TokenRejected."""
        if isinstance(token, str):
            seen = self._seen.get(token)
            if seen is not None:
                now_s = self._clock.now_ms() // 1000
                claims = seen.token
                if claims.issued_at - LEEWAY_S <= now_s <= claims.expires_at + LEEWAY_S:
                    return seen
        verified = verify_token(self._key, token, clock=self._clock)
        made_for = self._made_for.get(token) if isinstance(token, str) else None
        caller = ServiceCaller(
            verified, context_of(verified), actor=None if made_for is None else made_for[1]
        )
        if isinstance(token, str):
            if len(self._seen) >= SEEN_LIMIT:
                self._seen.clear()
            self._seen[token] = caller
        return caller


def without_claims(caller: ServiceCaller, params: JsonObject) -> tuple[ServiceCaller, JsonObject]:
    """Return the parameters a handler may see, and the caller with what it claimed there.

    The token is taken out; identity fields are overwritten from the claims or removed.
    """
    clean = params.copy()
    clean.pop(TOKEN_PARAM, None)
    if IDENTITY_PARAMS.isdisjoint(params):
        return caller, clean
    token = caller.token
    claimed = tuple(sorted(IDENTITY_PARAMS.intersection(params)))
    for name in claimed:
        claim: str | None = (
            token.effective_user_id
            if name == "user_id"
            else getattr(token.routing, _PROJECTED[name])
        )
        if claim is None:
            del clean[name]
        else:
            clean[name] = claim
    return replace(caller, identity_fields=claimed), clean


def context_of(token: VerifiedToken) -> CapabilityCallContext:
    """Return the call context that a provider sees: claims, or None where there is none."""
    shown = {name: getattr(token.routing, name) for name in _SHOWN}
    return CapabilityCallContext(token.effective_user_id, **shown)
