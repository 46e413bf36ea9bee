"""`sign_in_by_device`: RFC 8628 from the command line; a person agrees in a browser anywhere."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from kaged.base import Clock, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cli.logins import SavedLogin
from kaged.cli.remote import ask_json, login_of
from kaged.config.oidc import parse_secure_url

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
DEFAULT_INTERVAL_S: Final = 5
SLOWER_S: Final = 5
MAX_INTERVAL_S: Final = 60
MAX_LIFE_S: Final = 1800
MAX_TEXT_CHARS: Final = 2000


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a person has to open, and the code that they compare or type there."""

    url: str
    user_code: str


def sign_in_by_device(url: str, show: Callable[[DeviceCode], None], clock: Clock) -> SavedLogin:
    """Sign in to the daemon at `url`; `show` tells the person what to do.

    Raises:
        KagedError: `sign_in_disabled`, `sign_in_unavailable`, `sign_in_refused`.
    """
    daemon = _openid_of(url)
    login, device_endpoint = _endpoints(url, daemon)
    scopes = [one for one in daemon["scopes"] if isinstance(one, str)]
    scope = " ".join(dict.fromkeys(("openid", *scopes, "offline_access")))
    status, said = ask_json(
        "POST",
        device_endpoint,
        {"client_id": login.client_id, "scope": scope, "resource": login.resource},
    )
    device_code, user_code = _text(said, "device_code"), _text(said, "user_code")
    page = _text(said, "verification_uri_complete") or _text(said, "verification_uri")
    if status != 200 or not (device_code and user_code and page):
        raise KagedError(
            f"{login.issuer} does not begin a sign-in for the client {login.client_id}.",
            code="sign_in_refused",
            fix="Ask the operator to allow the device flow for [auth.oidc] cli_client_id.",
        )
    show(DeviceCode(page, user_code))
    interval_s = _whole(said, "interval", DEFAULT_INTERVAL_S, MAX_INTERVAL_S)
    until_s = clock.monotonic_s() + _whole(said, "expires_in", MAX_LIFE_S, MAX_LIFE_S)
    form = {"grant_type": GRANT, "device_code": device_code, "client_id": login.client_id}
    while clock.monotonic_s() < until_s:
        select.select([], [], [], interval_s)
        status, said = ask_json("POST", login.token_endpoint, form)
        match said.get("error"):
            case None if status == 200:
                return login_of(login, said, clock)
            case "authorization_pending":
                continue
            case "slow_down":
                interval_s = min(interval_s + SLOWER_S, MAX_INTERVAL_S)
            case "access_denied":
                raise KagedError(
                    "You did not agree; nobody is signed in.",
                    code="sign_in_refused",
                    fix=f"Run `kaged login {url}` again if that was a mistake.",
                )
            case "expired_token":
                break
            case _:
                raise KagedError(
                    f"{login.issuer} does not accept this sign-in.",
                    code="sign_in_refused",
                    fix=f"Run `kaged login {url}` again.",
                )
    raise KagedError(
        "Nobody agreed in time.", code="sign_in_refused", fix=f"Run `kaged login {url}` again."
    )


def _openid_of(url: str) -> dict[str, Any]:
    status, said = ask_json("GET", f"{url}/api/v1/auth/openid")
    if status == 404:
        raise KagedError(
            f"Nobody can sign in to {url}.",
            code="sign_in_disabled",
            fix="Ask the operator to describe a provider in [auth.oidc] of config.toml.",
        )
    if status != 200 or not _text(said, "issuer") or not isinstance(said.get("scopes"), list):
        raise KagedError(
            f"{url} is not a kaged daemon (status {status}).",
            code="sign_in_unavailable",
            fix="Check the URL.",
        )
    if not _text(said, "cli_client_id"):
        raise KagedError(
            f"{url} has no client for the command line.",
            code="sign_in_disabled",
            fix="Ask the operator to set [auth.oidc] cli_client_id.",
        )
    resource = _text(said, "resource")
    if _origin(resource) != _origin(url):
        # A token for somebody else's service is not fetched for whoever asks for it.
        raise KagedError(
            f"{url} asks for a token for {resource}.",
            code="sign_in_refused",
            fix=f"If both are the same daemon, run `kaged login {resource}`.",
        )
    return said


def _endpoints(url: str, daemon: dict[str, Any]) -> tuple[SavedLogin, str]:
    issuer = str(daemon["issuer"])
    try:
        parse_secure_url(issuer)
        status, said = ask_json("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if status != 200 or said.get("issuer") != issuer:
            raise KagedError("is another provider than it says")
        found = {
            name: parse_secure_url(_text(said, name))
            for name in ("device_authorization_endpoint", "token_endpoint")
        }
        revocation = _text(said, "revocation_endpoint")
        revocation = parse_secure_url(revocation) if revocation else None
    except KagedError as error:
        if error.code == "sign_in_unavailable":
            raise
        raise KagedError(
            f"{issuer} cannot be used to sign in to {url}: {error.message}.",
            code="sign_in_refused",
            fix="Ask the operator to check [auth.oidc] issuer, and whether it has the device flow.",
        ) from None
    login = SavedLogin(
        issuer,
        str(daemon["cli_client_id"]),
        found["token_endpoint"],
        revocation,
        str(daemon["resource"]),
        "",
        None,
        0,
    )
    return login, found["device_authorization_endpoint"]


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name)
    usable = isinstance(value, str) and len(value) <= MAX_TEXT_CHARS and value.isprintable()
    return value if usable and isinstance(value, str) else ""


def _whole(said: dict[str, Any], name: str, otherwise: int, most: int) -> int:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return otherwise
    return min(value, most)
