"""A sidecar: a small text browser for one web site, with the cookies of one person.

    BROWSER_SITE=https://intranet.example python3 sidecar.py

The host starts one process for each person. A person types name and password into a page of the
host; the browser signs in with them and keeps the site's cookies in its memory. When the process
was ended meanwhile, the next call signs in again.
"""

import os
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from typing import Any

from kaged.sdk.bridge import Bridge, BridgeCall, BridgeError, InvalidInput, NotLinked

SITE = os.environ["BROWSER_SITE"].rstrip("/")
TIMEOUT_S = 20
PAGE_LIMIT_BYTES = 1024 * 1024
PATH: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string", "pattern": "^/[!-~]*$", "maxLength": 500}},
    "required": ["path"],
}

cookies = CookieJar()
browser = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(cookies)
)
sidecar = Bridge()
pages = sidecar.capability("browser.pages", "Pages of the intranet, signed in.", sensitive=True)


class Reader(HTMLParser):
    """Gathers the words and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.links.append(href)


def load(path: str, form: dict[str, str] | None = None) -> str:
    """Load a page; a redirect is followed within the site only."""
    body = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with browser.open(f"{SITE}{path}", data=body, timeout=TIMEOUT_S) as answer:
            if not answer.url.startswith(f"{SITE}/"):
                raise BridgeError("capability_access_denied", "the page leads out of the site")
            return str(answer.read(PAGE_LIMIT_BYTES), "utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        if error.code in {401, 403}:
            raise NotLinked("the site wants another sign-in") from None
        if error.code == 404:
            raise InvalidInput("there is no such page") from None
        raise BridgeError("capability_backend_unavailable", "the site failed") from None
    except OSError:
        raise BridgeError("capability_backend_unavailable", "the site is away") from None


def sign_in(credentials: Any) -> None:
    load("/sign-in", {"name": credentials["name"], "password": credentials["password"]})


@pages.auth_begin
def begin(call: BridgeCall) -> dict[str, Any]:
    return {
        "fields": [
            {"name": "name", "label": "Name"},
            {"name": "password", "label": "Password", "secret": True},
        ]
    }


@pages.auth_submit
def submit(call: BridgeCall) -> dict[str, Any]:
    values = call.params["values"]
    try:
        sign_in(values)
    except NotLinked:
        raise InvalidInput("The site does not accept this name and password.") from None
    return {"account_ref": f"acct_{values['name']}", "metadata": {"account_name": values["name"]}}


@pages.operation("open", "Open a page of the site.", input_schema=PATH)
def open_page(call: BridgeCall) -> dict[str, Any]:
    try:
        text = load(call.input["path"])
    except NotLinked:  # a new process, or the site's session has ended
        if "password" not in call.credentials:
            raise
        sign_in(call.credentials)
        text = load(call.input["path"])
    reader = Reader()
    reader.feed(text)
    return {"text": " ".join(reader.words), "links": reader.links}


@pages.auth_revoke
def revoke(call: BridgeCall) -> dict[str, Any]:
    cookies.clear()
    return {}


raise SystemExit(sidecar.run())
