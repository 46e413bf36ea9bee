"""`OpenIdServer`: a provider of OpenID Connect that other people wrote; people with browsers."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, urljoin, urlsplit

import httpx
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import RSAKey

from whole.harness.daemon import Daemon

ROOT = Path(__file__).parents[3]
GUEST = ROOT / "tests" / "guests" / "openid_server.mjs"
CLIENT_ID = "kaged-web"
CLIENT_SECRET = "web-client-s3cret/+ &4711"
CLI_CLIENT = "kaged-cli"
AGENT_CLIENT = "an-mcp-client"
AGENT_REDIRECT = "http://127.0.0.1/agent"
ROBOT = "a-robot"
EXCHANGER = "kaged-exchanger"
EXCHANGER_SECRET = "exchange-s3cret-0817"
PATIENCE_S = 60.0
MAX_PAGES = 25
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
LOCAL = f"[secrets]\nsign-in = {json.dumps(CLIENT_SECRET)}\n"
PEOPLE: dict[str, dict[str, Any]] = {
    "ann": {
        "groups": ["staff", "kitchen"],
        "email": "ann@example.org",
        "email_verified": True,
        "realm": {"roles": ["chef"]},
    },
    "bob": {"groups": ["staff"], "email": "bob@example.org", "email_verified": False},
    "olga": {"groups": ["ops"]},
    "eve": {"groups": ["strangers"]},
    "operator": {"groups": ["staff"]},
}


def new_key() -> dict[str, Any]:
    """Return a private key that a provider signs with."""
    made = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"})
    made.ensure_kid()
    return dict(made.as_dict(private=True))


class OpenIdServer:
    """One oidc-provider process on loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "openid.json"
        self.settings: dict[str, Any] = {
            "keys": [new_key()],
            "people": PEOPLE,
            "clients": [
                {
                    "client_id": CLIENT_ID,
                    "client_secret": CLIENT_SECRET,
                    "redirect_uris": ["http://127.0.0.1/api/v1/auth/callback"],
                    "application_type": "native",
                    "grant_types": ["authorization_code"],
                },
                {
                    "client_id": CLI_CLIENT,
                    "redirect_uris": [],
                    "response_types": [],
                    "application_type": "native",
                    "grant_types": [DEVICE, "refresh_token"],
                    "token_endpoint_auth_method": "none",
                },
                {
                    "client_id": AGENT_CLIENT,
                    "redirect_uris": [AGENT_REDIRECT],
                    "application_type": "native",
                    "grant_types": ["authorization_code", "refresh_token"],
                    "token_endpoint_auth_method": "none",
                },
                {
                    "client_id": ROBOT,
                    "client_secret": CLIENT_SECRET,
                    "redirect_uris": [],
                    "response_types": [],
                    "grant_types": ["client_credentials"],
                },
                {
                    "client_id": EXCHANGER,
                    "client_secret": EXCHANGER_SECRET,
                    "redirect_uris": [],
                    "response_types": [],
                    "grant_types": ["urn:ietf:params:oauth:grant-type:token-exchange"],
                },
            ],
        }
        self._write()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, where it was before."""
        port = {"PORT": str(urlsplit(self.url).port)} if self.url else {}
        with (self._folder / "openid.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["node", str(GUEST), str(self._file)],
                env={**os.environ, "NODE_TOOLS": str(ROOT / "build" / "tools"), **port},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        said = (self._folder / "openid.log").read_text(encoding="utf-8")
        assert self.url, f"the provider did not start: {said}"

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def change(self, **settings: Any) -> None:
        """Change its settings; what was granted before stays."""
        self.settings.update(settings)
        self._write()
        httpx.post(f"{self.url}/test/reload", timeout=PATIENCE_S).raise_for_status()

    def tell(self, daemon: Daemon) -> None:
        """Let it tell a daemon whose sessions are over."""
        clients = self.settings["clients"]
        clients[0]["backchannel_logout_uri"] = f"{daemon.url}/api/v1/auth/backchannel-logout"
        clients[0]["backchannel_logout_session_required"] = True
        self.change()

    def _write(self) -> None:
        self._file.write_text(json.dumps(self.settings), encoding="utf-8")

    @property
    def fetches(self) -> int:
        """How often somebody asked for its keys."""
        return int(httpx.get(f"{self.url}/test/fetches", timeout=PATIENCE_S).json()["jwks"])

    @property
    def introspections(self) -> int:
        """How often somebody asked about a token."""
        said = httpx.get(f"{self.url}/test/fetches", timeout=PATIENCE_S).json()
        return int(said["introspection"])

    def revoke(self, token: str) -> None:
        """Let the program that has a token take it back."""
        form = {"token": token, "client_id": AGENT_CLIENT}
        got = httpx.post(f"{self.url}/token/revocation", data=form, timeout=PATIENCE_S)
        got.raise_for_status()

    def config(self, more: str = "") -> str:
        """Return the part of config.toml that trusts it."""
        return (
            f'[auth.oidc]\nissuer = "{self.url}"\nclient_id = "{CLIENT_ID}"\n'
            f'client_secret = "sign-in"\ncli_client_id = "{CLI_CLIENT}"\n'
            'allow_groups = ["staff"]\noperator_groups = ["ops"]\n'
            'roles = { cook = ["kitchen"] }\nteams = { house = ["staff", "ops"] }\n' + more
        )

    # -- tokens --------------------------------------------------------------------------------

    def signed(
        self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None, key: Any = None
    ) -> str:
        """Return a token with these claims, by a key of the provider's unless another is given."""
        own = key or self.settings["keys"][0]
        head = {"alg": "RS256", "kid": own["kid"], "typ": "at+jwt", **(header or {})}
        said = {name: value for name, value in head.items() if value is not None}
        return jwt.encode(said, dict(claims), RSAKey.import_key(own), default_type=None)

    def access_token(self, user: str, resource: str) -> str:
        """Let a person sign in to a program that then gets a token for `resource`."""
        return str(self.agent_tokens(user, resource)["access_token"])

    def agent_tokens(self, user: str, resource: str) -> dict[str, Any]:
        """Return everything that the program got."""
        verifier = "v" * 64
        query = {
            "client_id": AGENT_CLIENT,
            "response_type": "code",
            "redirect_uri": AGENT_REDIRECT,
            "scope": "openid profile offline_access",
            "prompt": "consent",
            "resource": resource,
            "code_challenge": create_s256_code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        url = str(httpx.URL(f"{self.url}/auth", params=query))
        with Browser(self) as browser:
            ended = browser.follow(url, user)
        code = parse_qs(urlsplit(ended).query)["code"][0]
        got = httpx.post(
            f"{self.url}/token",
            data={
                "grant_type": "authorization_code",
                "code": code,
                "client_id": AGENT_CLIENT,
                "redirect_uri": AGENT_REDIRECT,
                "code_verifier": verifier,
                "resource": resource,
            },
            timeout=PATIENCE_S,
        )
        assert got.is_success, got.text
        return dict(got.json())

    def robot_token(self, resource: str) -> str:
        """Return the token of a program that acts for nobody."""
        got = httpx.post(
            f"{self.url}/token",
            data={"grant_type": "client_credentials", "resource": resource, "scope": "use"},
            auth=(ROBOT, quote(CLIENT_SECRET, safe="")),
            timeout=PATIENCE_S,
        )
        assert got.is_success, got.text
        return str(got.json()["access_token"])


class Browser:
    """A person's browser, with cookies for the daemon and for the provider."""

    def __init__(self, provider: OpenIdServer, daemon: Daemon | None = None) -> None:
        self.provider = provider
        self.url = "" if daemon is None else daemon.url.rstrip("/")
        self.daemon = httpx.Client(timeout=PATIENCE_S, trust_env=False)
        self._elsewhere = httpx.Client(timeout=PATIENCE_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.daemon.close()
        self._elsewhere.close()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request to the daemon as a page of it would."""
        Daemon.spoken += 1
        headers = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", **more.pop("headers", {})}
        return self.daemon.request(method, self.url + path, headers=headers, **more)

    def get(self, path: str) -> Any:
        """GET something that has to be there, below `/api/v1`."""
        got = self.ask("GET", f"/api/v1{path}")
        assert got.is_success, (path, got.text[:500])
        return got.json()

    def post(self, path: str, body: Any = None) -> Any:
        """POST something that has to work, below `/api/v1`."""
        got = self.ask("POST", f"/api/v1{path}", json=body if body is not None else {})
        assert got.is_success, (path, got.text[:500])
        return got.json()

    def refused(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        """Send a request that has to be refused; returns its status and code."""
        got = self.ask(method, path, **more)
        assert got.is_error, (method, path, got.text[:500])
        return got.status_code, got.json()["error"]["code"]

    # -- signing in ----------------------------------------------------------------------------

    def begin(self, query: str = "") -> str:
        """Ask the daemon to sign in; returns where it sends the browser."""
        got = self.ask("GET", f"/api/v1/auth/login{query}")
        assert got.status_code == 303, got.text
        return str(got.headers["location"])

    def follow(self, url: str, user: str, *, agrees: bool = True) -> str:
        """Go through the provider's pages; returns the address that leads away from it."""
        got = self._elsewhere.get(url)
        for _ in range(MAX_PAGES):
            if "location" in got.headers:
                target = urljoin(str(got.url), got.headers["location"])
                if not target.startswith(self.provider.url):
                    return target
                got = self._elsewhere.get(target)
                continue
            form = _form(got.text)
            if form is None:
                return got.text
            if not agrees and form.get("prompt") == "consent":
                out = re.search(r'href="([^"]+/abort)"', got.text)
                assert out is not None, got.text
                got = self._elsewhere.get(urljoin(str(got.url), out[1]))
                continue
            target = urljoin(str(got.url), form.pop("action"))
            got = self._elsewhere.post(target, data={**form, "login": user, "password": "any"})
        raise AssertionError(f"too many pages: {got.text}")

    def answer_device(self, url: str, user: str, *, agrees: bool = True) -> str:
        """Open the page of a device code and agree, or abort it; returns the last page."""
        got = self._elsewhere.get(url, follow_redirects=True)
        for _ in range(MAX_PAGES):
            form = _form(got.text)
            if form is None:
                return got.text
            target = urljoin(str(got.url), form.pop("action"))
            if not agrees:
                return self._elsewhere.post(target, data={**form, "abort": "yes"}).text
            filled = {**form, "login": user, "password": "any"}
            got = self._elsewhere.post(target, data=filled, follow_redirects=True)
        raise AssertionError(f"too many pages: {got.text}")

    def come_back(self, url: str) -> httpx.Response:
        """Open the daemon's callback as a browser does that comes from the provider's page."""
        Daemon.spoken += 1
        return self.daemon.get(url, headers={"Sec-Fetch-Site": "cross-site"})

    def sign_in(self, user: str, query: str = "") -> httpx.Response:
        """Sign in from beginning to end; returns the daemon's last page, whatever it says."""
        return self.come_back(self.follow(self.begin(query), user))

    def sign_out_everywhere(self) -> None:
        """End the session at the provider itself, as its own page does."""
        got = self._elsewhere.get(f"{self.provider.url}/session/end")
        form = _form(got.text)
        assert form is not None, got.text
        target = urljoin(str(got.url), form.pop("action"))
        self._elsewhere.post(target, data={**form, "logout": "yes"}, follow_redirects=True)


def codes(answers: Sequence[httpx.Response]) -> list[str]:
    """Return the error codes of answers."""
    return [one.json()["error"]["code"] for one in answers]


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """Return a token that nobody signed."""
    return f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}."


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _form(page: str) -> dict[str, str] | None:
    """Return the action and the filled fields of the page's form; None when there is none."""
    found = re.search(r'<form[^>]*action="([^"]+)"[^>]*>', page)
    if found is None:
        return None
    fields = {
        name[1]: value[1]
        for tag in re.findall(r"<input[^>]*>", page)
        if (name := re.search(r'name="([^"]+)"', tag))
        and (value := re.search(r'value="([^"]*)"', tag))
    }
    return {**fields, "action": found[1]}
