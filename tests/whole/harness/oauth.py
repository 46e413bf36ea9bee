"""`OAuthServer`: an authorization server that other people wrote, and a person with a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

ROOT = Path(__file__).parents[3]
GUEST = ROOT / "tests" / "guests" / "oauth_server.mjs"
CLIENT_ID = "kaged-test"
CLIENT_SECRET = "client-s3cret-value-0815"
REDIRECT = "http://127.0.0.1/callback"
PATIENCE_S = 60.0
MAX_PAGES = 20


class OAuthServer:
    """One oidc-provider process on loopback."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "oauth.jsonl"
        self._journal.touch()
        with (folder / "oauth.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["node", str(GUEST), str(self._journal), CLIENT_ID, CLIENT_SECRET, REDIRECT],
                env={**os.environ, "NODE_TOOLS": str(ROOT / "build" / "tools")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        said = (folder / "oauth.log").read_text(encoding="utf-8")
        assert self.url, f"the authorization server did not start: {said}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the `oauth` table of a provider that uses this server."""
        return {
            "client_id": CLIENT_ID,
            "authorization_url": f"{self.url}/auth",
            "token_url": f"{self.url}/token",
            "revocation_url": f"{self.url}/token/revocation",
            "userinfo_url": f"{self.url}/me",
            "redirect_uri": REDIRECT,
            "scopes": ["openid", "email", "issues"],
            **more,
        }

    # -- what a person does --------------------------------------------------------------------

    def visit(self, url: str, user: str, *, agrees: bool = True) -> str:
        """Open an address in a new browser and fill in every page; returns where that ends.

        A person who does not agree takes the way out of the page that asks for it.
        """
        left = False
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as browser:
            got = browser.get(url)
            for _ in range(MAX_PAGES):
                if "location" in got.headers:
                    target = urljoin(str(got.url), got.headers["location"])
                    if target.startswith(REDIRECT):
                        return target
                    got = browser.get(target)
                    continue
                form = _form(got.text)
                if form is None or left:
                    return got.text
                if form.get("prompt") == "consent" and not agrees:
                    left = True
                    out = re.search(r'href="([^"]+/abort)"', got.text)
                    assert out is not None, got.text
                    got = browser.get(urljoin(str(got.url), out[1]))
                    continue
                target = urljoin(str(got.url), form.pop("action"))
                got = browser.post(target, data={**form, "login": user, "password": "any"})
            raise AssertionError(f"too many pages: {got.text}")

    def withdraw(self, token: str) -> None:
        """Take everything back that was granted together with a token."""
        self._ask("revocation", token).raise_for_status()

    # -- what the server knows -----------------------------------------------------------------

    def whose(self, token: str) -> str | None:
        """Return whose access token this is, as the server tells a service that asks."""
        said = self._ask("introspection", token).json()
        return str(said["sub"]) if said["active"] else None

    def _ask(self, what: str, token: str) -> httpx.Response:
        form = {"token": token, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
        url = f"{self.url}/token/{what}"
        return httpx.post(url, data=form, timeout=PATIENCE_S, trust_env=False)

    def secrets(self, kind: str = "", user: str = "") -> Sequence[str]:
        """Return the secrets that it has handed out or was shown, oldest first."""
        lines = self._journal.read_text(encoding="utf-8").splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [
            one["value"]
            for one in rows
            if kind in ("", one["kind"]) and user in ("", one.get("user"))
        ]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


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
