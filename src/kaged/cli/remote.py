"""`RemoteDaemon`: a daemon behind a URL, to which this user has signed in with `kaged login`."""

from __future__ import annotations

import ssl
from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx

from kaged.base import Clock, KagedError
from kaged.base.authorities import authorities
from kaged.cli.logins import Logins, SavedLogin
from kaged.config.oidc import parse_secure_url

EARLY_S: Final = 30
"""How long before its end an access token is renewed."""
TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 512 * 1024
MAX_LIFE_S: Final = 30 * 24 * 3600
DEFAULT_LIFE_S: Final = 300


def parse_daemon_url(text: str) -> str:
    """Read the URL of a daemon: scheme and host. Raises `url_invalid`."""
    try:
        url = parse_secure_url(text)
    except KagedError as error:
        raise KagedError(f"{text!r} {error.message}.", code="url_invalid", fix=error.fix) from None
    if urlsplit(url).path not in ("", "/"):
        raise KagedError(f"{text!r} has a path.", code="url_invalid", fix="Write https://host.")
    return url.rstrip("/")


def trusted(url: str) -> ssl.SSLContext | bool:
    """Return what certificates are checked with: the machine's authorities, or SSL_CERT_FILE.

    For a URL without TLS nothing: reading them takes longer than the whole command.
    """
    return False if urlsplit(url).scheme == "http" else authorities()


def ask_json(
    method: str,
    url: str,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Ask a daemon or a provider for a JSON object; returns the status with it.

    Raises:
        KagedError: `sign_in_unavailable`; nobody answers there.
    """
    try:
        with (
            httpx.Client(verify=trusted(url), timeout=TIMEOUT_S, trust_env=False) as http,
            http.stream(
                method, url, data=None if form is None else dict(form), headers=headers
            ) as response,
        ):
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise KagedError(
            f"{url} does not answer: {error}.",
            code="sign_in_unavailable",
            fix="Check the URL and the network. SSL_CERT_FILE names certificates to trust.",
        ) from None
    try:
        found = httpx.Response(200, content=bytes(body)).json()
    except ValueError:
        found = {}
    return response.status_code, found if isinstance(found, dict) else {}


def login_of(base: SavedLogin, body: Mapping[str, Any], clock: Clock) -> SavedLogin:
    """Return a sign-in with the tokens of a token endpoint's answer. Raises `sign_in_refused`."""
    token = body.get("access_token")
    if not isinstance(token, str) or not token.isascii():
        raise KagedError("The provider gave no access token.", code="sign_in_refused")
    life = body.get("expires_in")
    known = isinstance(life, int) and not isinstance(life, bool) and 0 < life <= MAX_LIFE_S
    life_s = life if known else DEFAULT_LIFE_S
    fresh = body.get("refresh_token", base.refresh_token)
    return replace(
        base,
        access_token=token,
        refresh_token=fresh if isinstance(fresh, str) else None,
        expires_at_ms=clock.now_ms() + int(life_s or 0) * 1000,
    )


def accept_invitation(url: str, invitation: str) -> SavedLogin:
    """Use an invitation up; returns the sign-in that it gives.

    Raises:
        KagedError: `sign_in_refused`, `sign_in_unavailable`.
    """
    code = parse_qs(urlsplit(invitation).query).get("code", [invitation])[0]
    place = f"{url}/api/v1/auth/invitation"
    status, body = ask_json("POST", f"{place}/token", {"code": code})
    token, ends = body.get("token"), body.get("expires_at")
    if status != 200 or not isinstance(token, str) or not isinstance(ends, str):
        error = body.get("error")
        said = error.get("message") if isinstance(error, dict) else None
        raise KagedError(
            str(said or f"{url} does not take the invitation."),
            code="sign_in_refused",
            fix="Ask the operator for another one.",
        )
    left_s = (datetime.fromisoformat(ends) - datetime.fromtimestamp(0, UTC)).total_seconds()
    return SavedLogin(url, "", "", f"{place}/end", url, token, None, int(left_s * 1000))


class RemoteDaemon(httpx.Auth):
    """A daemon's URL with the token for it, renewed when it is about to end or was refused."""

    def __init__(self, url: str, logins: Logins, clock: Clock) -> None:
        self.url = url
        self._logins = logins
        self._clock = clock

    def token(self) -> str:
        """Return an access token that lasts a while yet. Raises `not_signed_in`."""
        login = self._logins.get(self.url)
        if login is None:
            raise self._ended("You are not signed in to")
        if login.expires_at_ms <= self._clock.now_ms() + EARLY_S * 1000:
            return self._renewed(login.access_token)
        return login.access_token

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the token along; a second time with a new one, if it was refused."""
        token = self.token()
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = f"Bearer {self._renewed(token)}"
            response = yield request
            if response.status_code == 401:
                raise self._ended("Your sign-in has ended at")

    def _renewed(self, refused: str) -> str:
        """Trade the refresh token in for a new access token; another command may have done so."""
        with self._logins.locked():
            login = self._logins.get(self.url)
            if login is not None and login.access_token != refused:
                return login.access_token
            if login is None or login.refresh_token is None:
                raise self._ended("Your sign-in has ended at")
            form = {
                "grant_type": "refresh_token",
                "refresh_token": login.refresh_token,
                "client_id": login.client_id,
                "resource": login.resource,
            }
            status, body = ask_json("POST", login.token_endpoint, form)
            if status >= 500:
                raise KagedError(
                    f"{login.issuer} answers with status {status}.",
                    code="sign_in_unavailable",
                    fix="Try again later.",
                )
            if status != 200:
                raise self._ended("Your sign-in has ended at")
            fresh = login_of(login, body, self._clock)
            self._logins.put(self.url, fresh)
            return fresh.access_token

    def _ended(self, words: str) -> KagedError:
        return KagedError(
            f"{words} {self.url}.", code="not_signed_in", fix=f"Run `kaged login {self.url}`."
        )


class RemoteHttp:
    """Sends requests to a daemon behind a URL, as `UnixHttp` does over a socket."""

    def __init__(
        self, remote: RemoteDaemon, *, connect_timeout_s: float, answer_timeout_s: float
    ) -> None:
        self._url = remote.url
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(verify=trusted(remote.url)),
            auth=remote,
            timeout=httpx.Timeout(answer_timeout_s, connect=connect_timeout_s),
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def request(
        self, method: str, target: str, body: bytes = b"", content_type: str | None = None
    ) -> tuple[int, Generator[bytes]]:
        """Send a request. Returns the status, and the body piece by piece as it comes.

        Raises:
            OSError: nobody answers, or not to the end.
        """
        headers = {} if content_type is None else {"Content-Type": content_type}
        url = f"{self._url}{target}"
        request = self._http.build_request(method, url, content=body or None, headers=headers)
        try:
            response = self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise ConnectionError(str(error)) from error
        return response.status_code, _pieces(response)


def _pieces(response: httpx.Response) -> Generator[bytes]:
    try:
        yield from response.iter_bytes()
    except httpx.TransportError as error:
        raise ConnectionError(str(error)) from error
    finally:
        response.close()
