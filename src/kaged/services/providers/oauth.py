"""`OAuthClient`: OAuth 2.1 for first-party providers; code with PKCE, device code, refresh.

Tokens go from the authorization server to the caller's credential handle and to the service they
are for, nowhere else. The texts of errors never hold what a server said.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

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
    CapabilityBackendUnavailable,
    account_refused,
    auth_required,
)
from kaged.services.http_exchange import HttpExchange
from kaged.services.providers.oauth_server import (
    OAuthEndpoints,
    OAuthSettings,
    find_endpoints,
    register_client,
)

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport

KIND: Final = "oauth"
ANSWER_LIMIT_BYTES: Final = 256 * 1024
EARLY_S: Final = 60
"""How long before its end an access token is renewed."""

_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_DEFAULT_LIFE_S: Final = 3600
_DEFAULT_INTERVAL_S: Final = 5
_VERIFIER_BYTES: Final = 48  # 64 characters; the standard allows 43 to 128
_STATE_BYTES: Final = 24


class OAuthClient:
    """Speaks to one authorization server; every call takes `timeout_s` at most."""

    def __init__(
        self,
        settings: OAuthSettings,
        *,
        clock: Clock,
        client_secret: str | None = None,
        timeout_s: float,
        transport: AsyncBaseTransport | None = None,
        ca_file: str | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._client_secret = client_secret
        self._timeout_s = timeout_s
        self._transport = transport
        self._ca_file = ca_file
        self._found: OAuthEndpoints | None = None
        self._finding = asyncio.Lock()

    async def begin(self) -> CapabilityAuthBeginResult:
        """Start a flow: a URL to open, or a code to type elsewhere."""
        settings = self.settings
        if settings.device_url is not None:
            return await self._begin_device(settings.device_url)
        server = await self._server()
        if server.authorization_url is None:
            raise CapabilityBackendUnavailable("the provider has no authorization address")
        client = await self._client(server)
        # Heavy, and of no use to a daemon that links no account.
        from authlib.oauth2.rfc6749.parameters import (  # noqa: PLC0415 - see above
            prepare_grant_uri,
        )
        from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415 - see above

        state = secrets.token_urlsafe(_STATE_BYTES)
        verifier = secrets.token_urlsafe(_VERIFIER_BYTES)
        url = prepare_grant_uri(
            server.authorization_url,
            str(client["client_id"]),
            "code",
            redirect_uri=settings.redirect_uri,
            scope=" ".join(settings.scopes) or None,
            state=state,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return CapabilityAuthBeginResult(
            auth_url=url,
            flow_state={"code_verifier": verifier, **_kept(client, settings)},
            expected_callback_state=state,
            uses_pkce=True,
            redirect_uri=settings.redirect_uri,
        )

    async def complete(self, flow_state: JsonObject, code: str) -> JsonObject:
        """Exchange a code for a credential; CapabilityAuthFlowInvalid when it is not accepted."""
        server = await self._server()
        status, body = await self._post(
            server.token_url,
            flow_state,
            grant_type="authorization_code",
            code=code,
            code_verifier=str(flow_state.get("code_verifier")),
            redirect_uri=self.settings.redirect_uri,
        )
        return {**self._credential(_accepted(status, body)), **_client_of(flow_state)}

    async def poll(self, flow_state: JsonObject) -> JsonObject | CapabilityAuthPending:
        """Ask whether the person has agreed; returns the credential when they have."""
        device_code = flow_state.get("device_code")
        if not isinstance(device_code, str):
            raise CapabilityAuthFlowInvalid("the flow is not one that can be polled")
        server = await self._server()
        status, body = await self._post(
            server.token_url, flow_state, grant_type=_DEVICE_GRANT, device_code=device_code
        )
        word = body.get("error")
        if word in {"authorization_pending", "slow_down"}:
            wait_s = flow_state.get("interval_s")
            known_s = wait_s if isinstance(wait_s, int) else _DEFAULT_INTERVAL_S
            return CapabilityAuthPending(known_s + (5 if word == "slow_down" else 0))
        return {**self._credential(_accepted(status, body)), **_client_of(flow_state)}

    async def credential(self, credentials: CredentialHandle) -> JsonObject:
        """Return a credential whose access token works for a while yet, renewed if need be.

        Raises:
            CapabilityError: `capability_auth_required`; there is none, or it can no longer be
                renewed.
        """
        held = await credentials.get()
        if held is None or not isinstance(held.get("access_token"), str):
            raise auth_required("the account is no longer linked; link it again")
        ends_ms = held.get("expires_at_ms")
        due_ms = self._clock.now_ms() + EARLY_S * 1000
        if isinstance(ends_ms, int) and ends_ms <= due_ms:
            held = await credentials.refresh(held, self._renew)
        return held

    async def renewed(self, credentials: CredentialHandle, stale: JsonObject) -> JsonObject:
        """Renew a credential that its service refused before its time; returns the new one."""
        return await credentials.refresh(stale, self._renew)

    async def person(self, credential: JsonObject) -> tuple[str | None, str | None]:
        """Return the name and the address of an account, as far as `userinfo_url` tells them."""
        url = (await self._server()).userinfo_url
        if url is None:
            return None, None
        headers = {"Authorization": f"Bearer {credential['access_token']}"}
        status, body = await self._ask("GET", url, headers=headers)
        if status != 200:
            return None, None
        return _short(body.get("name")), _short(body.get("email"))

    async def revoke(self, credential: JsonObject) -> bool:
        """Revoke the tokens at the server; False when it offers no way to."""
        url = (await self._server()).revocation_url
        if url is None:
            return False
        token = credential.get("refresh_token") or credential.get("access_token")
        status, _ = await self._post(url, credential, token=str(token))
        return status == 200

    async def reach(self) -> None:
        """Ask the server for anything. Raises CapabilityBackendUnavailable without an answer."""
        await self._ask("GET", (await self._server()).token_url)

    # -- own -------------------------------------------------------------------------------------

    async def _begin_device(self, device_url: str) -> CapabilityAuthBeginResult:
        client = _kept(await self._client(await self._server()), self.settings)
        scope = " ".join(self.settings.scopes)
        status, body = await self._post(device_url, client, scope=scope)
        device_code, user_code = body.get("device_code"), body.get("user_code")
        url = body.get("verification_uri_complete") or body.get("verification_uri")
        if status != 200 or not all(
            isinstance(one, str) and one for one in (device_code, user_code, url)
        ):
            raise CapabilityBackendUnavailable("the authorization server did not start the flow")
        interval_s = _positive(body.get("interval"), _DEFAULT_INTERVAL_S)
        life_s = _positive(body.get("expires_in"), _DEFAULT_LIFE_S)
        return CapabilityAuthBeginResult(
            auth_url=str(url),
            expires_at_ms=self._clock.now_ms() + life_s * 1000,
            flow_state={"device_code": device_code, "interval_s": interval_s, **client},
            flow_type="device_code",
            user_code=str(user_code),
            poll_interval_s=interval_s,
        )

    async def _renew(self, stale: JsonObject) -> JsonObject:
        refresh_token = stale.get("refresh_token")
        if not isinstance(refresh_token, str):
            raise auth_required("the account's access has ended; link it again")
        url = (await self._server()).token_url
        status, body = await self._post(
            url, stale, grant_type="refresh_token", refresh_token=refresh_token
        )
        if status in {400, 401}:
            raise account_refused("the account's access was withdrawn; link it again")
        if status != 200:
            raise CapabilityBackendUnavailable("the authorization server failed")
        # A server that does not rotate leaves the refresh token out.
        return {**stale, **self._credential(body, refresh_token)}

    async def _server(self) -> OAuthEndpoints:
        """Return where the server is asked, looked up once."""
        async with self._finding:
            if self._found is None:
                self._found = await find_endpoints(self.settings, self._ask)
            return self._found

    async def _client(self, server: OAuthEndpoints) -> JsonObject:
        """Return the client that a new account is linked with; registered if there is none."""
        if self.settings.client_id is not None:
            return {"client_id": self.settings.client_id}
        return await register_client(self.settings, server.registration_url, self._ask)

    async def _post(self, url: str, known: JsonObject, /, **fields: str) -> tuple[int, JsonObject]:
        """Post a form that says which client this is: the operator's, or that of an account."""
        own = known.get("client")
        if isinstance(own, dict):
            fields |= {name: str(value) for name, value in own.items()}
        else:
            fields["client_id"] = str(self.settings.client_id)
            if self._client_secret is not None:
                fields["client_secret"] = self._client_secret
        return await self._ask("POST", url, data=fields)

    async def _ask(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, **request: Any
    ) -> tuple[int, JsonObject]:
        """Ask for a small JSON object; returns the status with it."""
        import msgspec  # noqa: PLC0415 - only where an answer is read

        wanted = {"Accept": "application/json", **(headers or {})}
        async with HttpExchange(
            "the authorization server",
            ANSWER_LIMIT_BYTES,
            timeout_s=self._timeout_s,
            transport=self._transport,
            ca_file=self._ca_file,
        ) as http:
            answer = await http.ask(method, url, headers=wanted, **request)
        try:
            body = msgspec.json.decode(answer.body) if answer.body else {}
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = {}
        return answer.status, body if isinstance(body, dict) else {}

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


def _kept(client: JsonObject, settings: OAuthSettings) -> JsonObject:
    """Return what a flow, and then its account, keeps of a client that was registered for it."""
    return {} if settings.client_id is not None else {"client": client}


def _client_of(flow_state: JsonObject) -> JsonObject:
    return {"client": flow_state["client"]} if "client" in flow_state else {}


def _accepted(status: int, body: JsonObject) -> JsonObject:
    """Return the answer of a token endpoint; its refusals become ours."""
    # Some servers refuse with a cheerful 200.
    if status == 200 and "error" not in body:
        return body
    match body.get("error"):
        case "access_denied":
            raise CapabilityAuthFlowDenied("the request was denied at the authorization server")
        case "expired_token":
            raise CapabilityAuthFlowExpired("the flow has expired; begin a new one")
        case "invalid_grant" | "invalid_request":
            raise CapabilityAuthFlowInvalid(
                "the authorization server does not accept the code; begin a new flow"
            )
        case _:
            raise CapabilityBackendUnavailable("the authorization server refused the request")


def _positive(value: JsonValue, otherwise: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        return otherwise
    return max(int(value), 1)


def _short(value: JsonValue) -> str | None:
    return value[:256] if isinstance(value, str) and value.isprintable() and value else None
