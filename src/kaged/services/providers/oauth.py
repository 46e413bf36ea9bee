"""`OAuthClient`: OAuth 2.1 for first-party providers; code with PKCE, device code, refresh.

Tokens go from the authorization server to the caller's credential handle and to the service they
are for, nowhere else. The texts of errors never hold what a server said.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kaged.base import Clock, JsonObject, JsonValue
from kaged.services.contract import (
    CapabilityAuthBeginResult,
    CapabilityAuthPending,
    CredentialHandle,
)
from kaged.services.errors import (
    CapabilityAuthFlowDenied,
    CapabilityAuthFlowExpired,
    CapabilityAuthFlowInvalid,
    CapabilityAuthRequired,
    CapabilityBackendUnavailable,
    CapabilityError,
)
from kaged.services.pkce import new_pkce, new_state

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport

KIND: Final = "oauth"
ANSWER_LIMIT_BYTES: Final = 256 * 1024
EARLY_S: Final = 60
"""How long before its end an access token is renewed."""

_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_DEFAULT_LIFE_S: Final = 3600
_DEFAULT_INTERVAL_S: Final = 5


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """An authorization server and the client that this daemon is there.

    Without `device_url` a person pastes the callback URL or its code; with it, they type a code
    on another device. `userinfo_url` tells the address of an account.
    """

    client_id: str
    token_url: str
    authorization_url: str | None = None
    device_url: str | None = None
    revocation_url: str | None = None
    userinfo_url: str | None = None
    redirect_uri: str = "http://127.0.0.1/callback"
    scopes: tuple[str, ...] = ()
    client_secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Person:
    """Whose account it is, as the authorization server says."""

    name: str | None = None
    email: str | None = None


class OAuthClient:
    """Speaks to one authorization server; every call takes `timeout_s` at most."""

    def __init__(
        self,
        settings: OAuthSettings,
        *,
        clock: Clock,
        timeout_s: float,
        transport: AsyncBaseTransport | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._timeout_s = timeout_s
        self._transport = transport

    async def begin(self) -> CapabilityAuthBeginResult:
        """Start a flow: a URL to open, or a code to type elsewhere."""
        settings = self.settings
        if settings.device_url is not None:
            return await self._begin_device(settings.device_url)
        if settings.authorization_url is None:
            raise CapabilityBackendUnavailable("the provider has no authorization address")
        pkce, state = new_pkce(), new_state()
        # Heavy, and of no use to a daemon that links no account.
        from authlib.oauth2.rfc6749.parameters import (  # noqa: PLC0415 - see above
            prepare_grant_uri,
        )

        url = prepare_grant_uri(
            settings.authorization_url,
            settings.client_id,
            "code",
            redirect_uri=settings.redirect_uri,
            scope=" ".join(settings.scopes) or None,
            state=state,
            code_challenge=pkce.challenge,
            code_challenge_method=pkce.method,
        )
        return CapabilityAuthBeginResult(
            auth_url=url,
            flow_state={"code_verifier": pkce.verifier},
            expected_callback_state=state,
            uses_pkce=True,
            redirect_uri=settings.redirect_uri,
        )

    async def complete(self, flow_state: JsonObject, code: str) -> JsonObject:
        """Exchange a code for a credential.

        Raises:
            CapabilityAuthFlowInvalid: the server does not take the code.
        """
        token = await self._fetch(
            grant_type="authorization_code",
            code=code,
            code_verifier=str(flow_state.get("code_verifier")),
            redirect_uri=self.settings.redirect_uri,
        )
        return self._credential(token)

    async def poll(self, flow_state: JsonObject) -> JsonObject | CapabilityAuthPending:
        """Ask whether the person has agreed; returns the credential when they have."""
        device_code = flow_state.get("device_code")
        if not isinstance(device_code, str):
            raise CapabilityAuthFlowInvalid("the flow is not one that can be polled")
        wait_s = flow_state.get("interval_s")
        try:
            token = await self._fetch(grant_type=_DEVICE_GRANT, device_code=device_code)
        except _StillPending as pending:
            known_s = wait_s if isinstance(wait_s, int) else _DEFAULT_INTERVAL_S
            return CapabilityAuthPending(known_s + (5 if pending.slow_down else 0))
        return self._credential(token)

    async def access_token(self, credentials: CredentialHandle) -> tuple[str, JsonObject]:
        """Return an access token that still works for a while, renewed if need be.

        Raises:
            CapabilityAuthRequired: there is none, or it can no longer be renewed.
        """
        held = await credentials.get()
        if held is None or not isinstance(held.get("access_token"), str):
            raise CapabilityAuthRequired("the account is no longer linked; link it again")
        ends_ms = held.get("expires_at_ms")
        due_ms = self._clock.now_ms() + EARLY_S * 1000
        if isinstance(ends_ms, int) and ends_ms <= due_ms:
            held = await credentials.refresh(held, self._renew)
        return str(held["access_token"]), held

    async def renewed(self, credentials: CredentialHandle, stale: JsonObject) -> str:
        """Renew a token that its service refused before its time; returns the new one."""
        return str((await credentials.refresh(stale, self._renew))["access_token"])

    async def person(self, credential: JsonObject) -> Person:
        """Ask whose account it is; nobody knows without a `userinfo_url`."""
        if self.settings.userinfo_url is None:
            return Person()
        headers = {"Authorization": f"Bearer {credential['access_token']}"}
        answer = await self._ask("GET", self.settings.userinfo_url, headers=headers)
        if answer.status != 200:
            return Person()
        return Person(_short(answer.body.get("name")), _short(answer.body.get("email")))

    async def revoke(self, credential: JsonObject) -> bool:
        """Revoke the tokens at the server; False when it offers no way to."""
        if self.settings.revocation_url is None:
            return False
        token = credential.get("refresh_token") or credential.get("access_token")
        data = {**self._identification(), "token": str(token)}
        answer = await self._ask("POST", self.settings.revocation_url, data=data)
        return answer.status == 200

    # -- own -------------------------------------------------------------------------------------

    async def _begin_device(self, device_url: str) -> CapabilityAuthBeginResult:
        data = {**self._identification(), "scope": " ".join(self.settings.scopes)}
        answer = await self._ask("POST", device_url, data=data)
        body = answer.body
        device_code, user_code = body.get("device_code"), body.get("user_code")
        url = body.get("verification_uri_complete") or body.get("verification_uri")
        if answer.status != 200 or not all(
            isinstance(one, str) and one for one in (device_code, user_code, url)
        ):
            raise CapabilityBackendUnavailable("the authorization server did not start the flow")
        interval_s = _positive(body.get("interval"), _DEFAULT_INTERVAL_S)
        life_s = _positive(body.get("expires_in"), _DEFAULT_LIFE_S)
        return CapabilityAuthBeginResult(
            auth_url=str(url),
            expires_at_ms=self._clock.now_ms() + life_s * 1000,
            flow_state={"device_code": device_code, "interval_s": interval_s},
            flow_type="device_code",
            user_code=str(user_code),
            poll_interval_s=interval_s,
        )

    async def _renew(self, stale: JsonObject) -> JsonObject:
        refresh_token = stale.get("refresh_token")
        if not isinstance(refresh_token, str):
            raise CapabilityAuthRequired("the account's access has ended; link it again")
        data = {
            **self._identification(),
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
        }
        answer = await self._ask("POST", self.settings.token_url, data=data)
        if answer.status in {400, 401}:
            raise CapabilityAuthRequired("the account's access was withdrawn; link it again")
        # A server that does not rotate leaves the refresh token out.
        return {**stale, **self._credential(answer.token(), refresh_token)}

    async def _fetch(self, **fields: str) -> JsonObject:
        """Ask the token endpoint; its refusals become ours."""
        data = {**self._identification(), **fields}
        answer = await self._ask("POST", self.settings.token_url, data=data)
        # Some servers refuse with a cheerful 200.
        if answer.status != 200 or "error" in answer.body:
            raise _refused(answer.body.get("error"))
        return answer.body

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        data: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> _OAuthAnswer:
        """Ask for a small JSON object."""
        import httpx  # noqa: PLC0415 - heavy, and of no use to a daemon that links no account
        import msgspec  # noqa: PLC0415 - only where an answer is read

        read = bytearray()
        with _reachable():
            async with (
                httpx.AsyncClient(
                    timeout=self._timeout_s,
                    follow_redirects=False,
                    trust_env=False,
                    transport=self._transport,
                ) as client,
                client.stream(
                    method,
                    url,
                    data=data,
                    headers={"Accept": "application/json", **(headers or {})},
                ) as response,
            ):
                async for chunk in response.aiter_bytes():
                    read += chunk
                    if len(read) > ANSWER_LIMIT_BYTES:
                        raise CapabilityBackendUnavailable(
                            "the authorization server's answer is too large"
                        )
        try:
            body = msgspec.json.decode(bytes(read)) if read else {}
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = {}
        return _OAuthAnswer(response.status_code, body if isinstance(body, dict) else {})

    def _identification(self) -> dict[str, str]:
        found = {"client_id": self.settings.client_id}
        if self.settings.client_secret is not None:
            found["client_secret"] = self.settings.client_secret
        return found

    def _credential(self, token: JsonObject, refresh_token: str | None = None) -> JsonObject:
        access_token = token.get("access_token")
        if not isinstance(access_token, str) or not access_token:
            raise CapabilityBackendUnavailable("the authorization server gave no access token")
        life_s = _positive(token.get("expires_in"), _DEFAULT_LIFE_S)
        credential: JsonObject = {
            "kind": KIND,
            "access_token": access_token,
            "expires_at_ms": self._clock.now_ms() + life_s * 1000,
        }
        renewed = token.get("refresh_token", refresh_token)
        if isinstance(renewed, str):
            credential["refresh_token"] = renewed
        return credential


class _StillPending(Exception):
    def __init__(self, *, slow_down: bool) -> None:
        super().__init__()
        self.slow_down = slow_down


@dataclass(frozen=True, slots=True)
class _OAuthAnswer:
    status: int
    body: JsonObject

    def token(self) -> JsonObject:
        if self.status != 200:
            raise CapabilityBackendUnavailable("the authorization server failed")
        return self.body


@contextmanager
def _reachable() -> Generator[None]:
    """Raise one error for whatever goes wrong on the way to a server, without what it said."""
    import httpx  # noqa: PLC0415 - heavy

    try:
        yield
    except CapabilityError:
        raise
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError):
        raise CapabilityBackendUnavailable(
            "the authorization server cannot be reached, or does not answer as one"
        ) from None


def _refused(word: JsonValue) -> Exception:
    match word:
        case "authorization_pending":
            return _StillPending(slow_down=False)
        case "slow_down":
            return _StillPending(slow_down=True)
        case "access_denied":
            return CapabilityAuthFlowDenied("the request was denied at the authorization server")
        case "expired_token":
            return CapabilityAuthFlowExpired("the flow has expired; begin a new one")
        case "invalid_grant" | "invalid_request":
            return CapabilityAuthFlowInvalid(
                "the authorization server does not accept the code; begin a new flow"
            )
        case _:
            return CapabilityBackendUnavailable("the authorization server refused the request")


def _positive(value: JsonValue, otherwise: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        return otherwise
    return max(int(value), 1)


def _short(value: JsonValue) -> str | None:
    return value[:256] if isinstance(value, str) and value.isprintable() and value else None
