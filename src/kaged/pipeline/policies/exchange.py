"""`TokenExchange`: a person's token becomes one for the server that is called (RFC 8693)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from http import HTTPStatus
from typing import Any, Final

from pydantic import Field, SecretStr

from kaged.base.clock import SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.identity import DelegationPayload, DelegationResult
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig

EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a type's name
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_KEPT: Final = 1000
SPARE_S: Final = 30.0
DEFAULT_TTL_S: Final = 60.0


class ExchangeOptions(Options):
    """Where tokens are exchanged, as which client, and for which servers."""

    token_url: str = Field(pattern=r"https?://\S+")
    client_id: str = Field(min_length=1)
    client_secret: SecretStr
    audiences: dict[str, str] = Field(default_factory=dict)
    scope: str | None = None
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    without_token: str = Field(default="deny", pattern="deny|pass")


@dataclass(frozen=True, slots=True)
class _Kept:
    token: str
    until_s: float


class TokenExchange(Plugin):
    """Exchanges the token that a person came with for one that only the called server accepts.

    `audiences` names servers by address or the beginning of one; others are called without a token
    of this policy's. A call of somebody who came without a token is refused, unless
    `without_token: pass`.
    """

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        self._options = read_options(ExchangeOptions, config)
        self._clock = SystemClock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._asking = asyncio.Semaphore(8)

    async def token_delegate(
        self, payload: DelegationPayload, context: PluginContext
    ) -> PluginResult[Any] | None:
        """Return a token for the target."""
        audience = self._audience(payload.target_audience or "")
        if audience is None:
            return None
        if payload.bearer_token is None:
            if self._options.without_token == "pass":  # noqa: S105 - a word, not a secret
                return None
            return _denied(f"{payload.target_name} needs a token of the person it is called for")
        subject = payload.bearer_token.get_secret_value()
        key = (hashlib.sha256(subject.encode()).hexdigest(), audience)
        now_s = self._clock.monotonic_s()
        known = self._kept.get(key)
        if known is None or known.until_s <= now_s:
            async with self._asking:
                found = await self._exchange(subject, audience)
            if isinstance(found, str):
                return _denied(f"no token for {payload.target_name}: {found}")
            known = self._kept[key] = found
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return PluginResult(modified_payload=DelegationResult(delegated_token=known.token))

    def _audience(self, endpoint: str) -> str | None:
        found = [one for one in self._options.audiences if endpoint.startswith(one)]
        return self._options.audiences[max(found, key=len)] if found else None

    async def _exchange(self, subject: str, audience: str) -> _Kept | str:
        """Return the token, or in few words why there is none; never what the server said."""
        import httpx  # noqa: PLC0415 - loaded when a token is first exchanged

        options = self._options
        form = {
            "grant_type": EXCHANGE,
            "subject_token": subject,
            "subject_token_type": ACCESS_TOKEN,
            "requested_token_type": ACCESS_TOKEN,
            "audience": audience,
            **({} if options.scope is None else {"scope": options.scope}),
        }
        secret = options.client_secret.get_secret_value()
        try:
            # No redirects and no proxy of the environment: secrets go where the operator said.
            async with httpx.AsyncClient(timeout=options.timeout_s, trust_env=False) as client:
                answer = await client.post(
                    options.token_url, data=form, auth=(options.client_id, secret)
                )
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return f"the token server cannot be reached ({type(error).__name__})"
        if len(answer.content) > MAX_ANSWER_BYTES:
            return "the token server sent too much"
        said = _object(answer.content)
        if answer.status_code != HTTPStatus.OK:
            code = said.get("error")
            shown = code if isinstance(code, str) and code.isidentifier() else answer.status_code
            return f"the token server answered {shown}"
        token, seconds = said.get("access_token"), said.get("expires_in")
        if not isinstance(token, str) or not token:
            return "the token server sent none"
        ttl_s = float(seconds) if isinstance(seconds, int | float) else DEFAULT_TTL_S
        return _Kept(token, self._clock.monotonic_s() + max(0.0, ttl_s - SPARE_S))


def _denied(reason: str) -> PluginResult[Any]:
    violation = PluginViolation(reason=reason, description=reason, code="token_not_delegated")
    return PluginResult(continue_processing=False, violation=violation)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
