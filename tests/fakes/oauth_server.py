"""An OAuth 2.1 authorization server (authlib) and an API behind it, on loopback.

Codes need PKCE with S256, refresh tokens rotate, device codes wait for `agree`. Behind it is a
small API that takes only live access tokens.
"""

# The stubs of authlib's server side say less than its documentation allows.
# pyright: reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from authlib.common.security import generate_token
from authlib.oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import (
    DEVICE_CODE_GRANT_TYPE,
    DeviceAuthorizationEndpoint,
    DeviceCodeGrant,
)

CLIENT_ID = "kaged-test"
CLIENT_SECRET = "client-s3cret-value-0815"
REDIRECT = "http://127.0.0.1/callback"


@dataclass
class Client(ClientMixin):
    """The one client there is."""

    client_id: str = CLIENT_ID

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return REDIRECT

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri == REDIRECT

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_post"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in {"authorization_code", "refresh_token", DEVICE_CODE_GRANT_TYPE}


@dataclass
class Code:
    """An authorization code on its way to a token."""

    code: str
    user: str
    redirect_uri: str
    scope: str
    code_challenge: str | None
    code_challenge_method: str | None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Device:
    """A device flow; `user` is set when somebody has agreed."""

    data: dict[str, Any]
    scope: str
    user: str | None = None
    denied: bool = False
    expired: bool = False
    slow_down: bool = False

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_scope(self) -> str:
        return self.scope or ""

    def get_user_code(self) -> str:
        return str(self.data["user_code"])

    def is_expired(self) -> bool:
        return self.expired


@dataclass
class Grant:
    """A pair of tokens."""

    user: str
    access_token: str
    refresh_token: str
    scope: str
    expires_at: float
    revoked: bool = False

    def check_client(self, client: Client) -> bool:
        return client.client_id == CLIENT_ID

    def get_scope(self) -> str:
        return self.scope

    @property
    def alive(self) -> bool:
        return not self.revoked and time.monotonic() < self.expires_at


@dataclass
class GrantRegistry:
    """What the server remembers."""

    codes: dict[str, Code] = field(default_factory=dict[str, Code])
    devices: dict[str, Device] = field(default_factory=dict[str, Device])
    grants: list[Grant] = field(default_factory=list[Grant])
    expires_in: int = 3600
    token_requests: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    api_requests: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])

    def by_access(self, token: str) -> Grant | None:
        return next((one for one in self.grants if one.access_token == token), None)

    def by_refresh(self, token: str) -> Grant | None:
        return next((one for one in self.grants if one.refresh_token == token), None)


def _grants(registry: GrantRegistry) -> tuple[type, type, type, type, type]:  # noqa: C901 - five small classes
    class CodeGrant(AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_post"]  # noqa: RUF012 - the library's form

        def save_authorization_code(self, code: str, request: Any) -> None:
            data = request.payload.data
            registry.codes[code] = Code(
                code,
                request.user,
                data["redirect_uri"],
                request.scope or "",
                data.get("code_challenge"),
                data.get("code_challenge_method"),
            )

        def query_authorization_code(self, code: str, client: Any) -> Code | None:
            return registry.codes.get(code)

        def delete_authorization_code(self, authorization_code: Code) -> None:
            registry.codes.pop(authorization_code.code, None)

        def authenticate_user(self, authorization_code: Code) -> str:
            return authorization_code.user

    class Refresh(RefreshTokenGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_post"]  # noqa: RUF012 - the library's form
        INCLUDE_NEW_REFRESH_TOKEN = True

        def authenticate_refresh_token(self, refresh_token: str) -> Grant | None:
            found = registry.by_refresh(refresh_token)
            return found if found is not None and not found.revoked else None

        def authenticate_user(self, refresh_token: Grant) -> str:
            return refresh_token.user

        def revoke_old_credential(self, refresh_token: Grant) -> None:
            refresh_token.revoked = True

    class Devices(DeviceCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_post"]  # noqa: RUF012 - the library's form

        def query_device_credential(self, device_code: str) -> Device | None:
            return registry.devices.get(device_code)

        def query_user_grant(self, user_code: str) -> tuple[str, bool] | None:
            for one in registry.devices.values():
                if one.get_user_code() == user_code:
                    if one.denied:
                        return ("", False)
                    return None if one.user is None else (one.user, True)
            return None

        def should_slow_down(self, credential: Device) -> bool:
            return credential.slow_down

    class DeviceEndpoint(DeviceAuthorizationEndpoint):
        def get_verification_uri(self) -> str:
            return "https://login.example/device"

        def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
            registry.devices[data["device_code"]] = Device(data, scope)

    class Revocation(RevocationEndpoint):
        CLIENT_AUTH_METHODS = ["client_secret_post"]  # noqa: RUF012 - the library's form

        def query_token(self, token_string: str, token_type_hint: str | None) -> Grant | None:
            return registry.by_refresh(token_string) or registry.by_access(token_string)

        def revoke_token(self, token: Grant, request: Any) -> None:
            token.revoked = True

    return CodeGrant, Refresh, Devices, DeviceEndpoint, Revocation


class Server(AuthorizationServer):
    """authlib's server with a memory and plain requests."""

    def __init__(self, registry: GrantRegistry) -> None:
        super().__init__()
        self._book = registry
        code, refresh, devices, device_endpoint, revocation = _grants(registry)
        self.register_grant(code, [CodeChallenge(required=True)])
        self.register_grant(refresh)
        self.register_grant(devices)
        self.register_endpoint(device_endpoint)
        self.register_endpoint(revocation)
        self.register_token_generator(
            "default",
            BearerTokenGenerator(
                lambda **_: generate_token(42),
                lambda **_: generate_token(48),
                lambda *_: registry.expires_in,
            ),
        )

    def query_client(self, client_id: str) -> Client | None:
        return Client() if client_id == CLIENT_ID else None

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        self._book.grants.append(
            Grant(
                request.user,
                token["access_token"],
                token.get("refresh_token", ""),
                token.get("scope", ""),
                time.monotonic() + token["expires_in"],
            )
        )

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        return

    def create_oauth2_request(self, request: Any) -> OAuth2Request:
        method, uri, headers, form = request
        made = OAuth2Request(method, uri, headers=headers)
        query = dict(parse_qsl(urlsplit(uri).query))
        made.payload = BasicOAuth2Payload({**query, **form})
        made.__class__ = type("Request", (OAuth2Request,), {"form": form, "args": query})
        return made

    def handle_response(self, status: int, body: Any, headers: Any) -> Any:
        return status, body, dict(headers)


@dataclass
class OAuthLab:
    """The running server; `agree` and `deny` are what a person does in a browser."""

    registry: GrantRegistry
    url: str
    server: Server

    def visit(self, auth_url: str, user: str) -> str:
        """Open an authorization URL as `user` and agree; returns the callback URL."""
        parts = urlsplit(auth_url)
        request = ("GET", f"https://login.example{parts.path}?{parts.query}", {}, {})
        made = self.server.create_oauth2_request(request)
        made.user = user
        grant = self.server.get_authorization_grant(made)
        redirect_uri = grant.validate_authorization_request()
        _, _, headers = grant.create_authorization_response(redirect_uri, user)
        return str(dict(headers)["Location"])

    def agree(self, user_code: str, user: str) -> None:
        """Type a device code in."""
        self.device(user_code).user = user

    def device(self, user_code: str) -> Device:
        return next(
            one for one in self.registry.devices.values() if one.get_user_code() == user_code
        )


@contextlib.contextmanager
def oauth_server() -> Generator[OAuthLab]:  # noqa: C901 - a table of paths
    """Run the server and its API."""
    registry = GrantRegistry()
    server = Server(registry)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            return

        def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if "Content-Type" not in (headers or {}):
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            parts = urlsplit(self.path)
            if parts.path in {"/token", "/revoke", "/device"}:
                form = {key: values[0] for key, values in parse_qs(raw.decode()).items()}
                uri = f"https://login.example{self.path}"
                request = ("POST", uri, dict(self.headers), form)
                if parts.path == "/token":
                    registry.token_requests.append(form)
                    self._answer(*server.create_token_response(request))
                else:
                    name = "revocation" if parts.path == "/revoke" else "device_authorization"
                    self._answer(*server.create_endpoint_response(name, request))
                return
            if parts.path == "/tokeninfo":  # how a mail server asks whose token it was shown
                token = parse_qs(parts.query).get("access_token", [""])[0]
                found = registry.by_access(token)
                good = found is not None and found.alive
                body = {"email": f"{found.user}@example.org"} if found and good else {}
                self._answer(200 if good else 401, body)
                return
            self._api(parts.path, parts.query, raw)

        def _api(self, path: str, query: str, raw: bytes) -> None:
            grant = registry.by_access(
                self.headers.get("authorization", "").removeprefix("Bearer ")
            )
            if grant is None or not grant.alive:
                self._answer(401, {"message": "no"})
                return
            registry.api_requests.append((self.command, self.path, raw))
            if path == "/userinfo":
                self._answer(
                    200, {"name": grant.user.title(), "email": f"{grant.user}@example.org"}
                )
            elif path == "/api/leak":
                self._answer(200, {"access_token": grant.access_token})
            elif path == "/api/away":
                self._answer(302, {}, {"Location": "http://127.0.0.1:1/elsewhere"})
            elif path == "/api/broken":
                self._answer(500, {"message": "boom"})
            elif path == "/api/busy":
                self._answer(429, {}, {"Retry-After": "7"})
            elif path == "/api/missing":
                self._answer(404, {"message": "no such thing"})
            elif path == "/api/long":
                self._answer(200, b"x" * (1024 * 1024))
            elif path == "/api/words":
                self._answer(200, b"just words", {"Content-Type": "text/plain"})
            else:
                body = json.loads(raw) if raw else None
                link = {"Link": '<http://x.example/?page=2>; rel="next"'}
                echo = {"user": grant.user, "method": self.command, "path": path}
                self._answer(200, {**echo, "query": parse_qs(query), "body": body}, link)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the library's names

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield OAuthLab(registry, f"http://127.0.0.1:{http.server_port}", server)
    finally:
        http.shutdown()
        http.server_close()
        thread.join(timeout=30)
