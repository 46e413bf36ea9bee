"""What a provider says about a flow and an account, checked before anybody is told."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final, cast
from urllib.parse import parse_qsl, urlsplit

from kaged.base import JsonObject
from kaged.kernel.identity import Actor
from kaged.services import contract
from kaged.services.contract import CapabilityAuthCompleteResult
from kaged.services.errors import CapabilityAuthFlowDenied, CapabilityInvalidOutput
from kaged.services.sanitize import OutputRefused, harden
from kaged.services.secret_search import CallSecrets

AUTH_URL_CHARS: Final = 4096
NAME_CHARS: Final = 256
FIELDS_LIMIT: Final = 16
REF_CHARS: Final = 128

_SECRET_QUERY: Final = frozenset(
    {"client_secret", "access_token", "refresh_token", "id_token", "password", "code_verifier"}
)


def check_auth_url(url: object) -> str:
    """Return the query of a page that a person may be sent to.

    Raises:
        CapabilityInvalidOutput: not https (or http on loopback), too long, or with a secret in it.
    """
    if not isinstance(url, str) or not 0 < len(url) <= AUTH_URL_CHARS or not url.isprintable():
        raise CapabilityInvalidOutput("the provider gave no usable auth URL")
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise CapabilityInvalidOutput("the provider gave no usable auth URL") from None
    plain_ok = parts.scheme == "http" and host is not None and _is_loopback(host)
    if not host or not (parts.scheme == "https" or plain_ok):
        raise CapabilityInvalidOutput("the auth URL must be https")
    if parts.username is not None or parts.password is not None or " " in url:
        raise CapabilityInvalidOutput("the auth URL may hold no credentials")
    for text in (parts.query, parts.fragment):
        for name, _value in parse_qsl(text):
            if name.strip().lower() in _SECRET_QUERY:
                raise CapabilityInvalidOutput("the auth URL may hold no credentials")
    return parts.query


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def checked_account(found: object, secrets: CallSecrets) -> CapabilityAuthCompleteResult:
    """Return the account that a provider says is linked now.

    `secrets` are those of the flow and of the credential that came of it: a name or an address
    that holds one would be stored and shown.

    Raises:
        CapabilityInvalidOutput: no account, or one that carries a credential (SC-AMB-23).
    """
    if not isinstance(found, CapabilityAuthCompleteResult):
        raise CapabilityInvalidOutput("the provider linked no account")
    ref = cast("object", found.account_ref)
    if not isinstance(ref, str) or not is_short(ref, REF_CHARS):
        raise CapabilityInvalidOutput("the provider's account name cannot be used")
    shown: JsonObject = {"account_ref": ref, "metadata": found.metadata}
    try:
        harden(shown, secrets=secrets, strict=True)
        harden(dict(found.credential_material), strict=True)
    except OutputRefused:
        raise CapabilityInvalidOutput("the provider's account holds credentials") from None
    return CapabilityAuthCompleteResult(ref.strip(), found.credential_material, found.metadata)


def hidden_texts(flow_state: JsonObject) -> tuple[str, ...]:
    """Return what of a flow's state no page's address may hold: the other halves of its codes."""
    return tuple(
        value
        for name, value in flow_state.items()
        if isinstance(value, str) and (name in _SECRET_QUERY or name == "device_code")
    )


def is_short(text: str, limit: int) -> bool:
    """Return whether a text can be shown: not blank, within the limit, no control characters."""
    return len(text.strip()) > 0 and len(text) <= limit and text.isprintable()


def shown_name(value: object) -> str | None:
    """Return a name or an address that may be shown, or None."""
    if isinstance(value, str) and is_short(value, NAME_CHARS):
        return value.strip()
    return None


def require_same_address(actor: Actor | None, email: str | None) -> None:
    """Refuse a person an account of another address than their own.

    Whoever agrees on a page that is not ours, or on another device, need not be the one who began.
    What the account calls itself is compared with what vouched for the person. The operator links
    what they like.

    Raises:
        CapabilityAuthFlowDenied: it is another one, or one of the two has none.
    """
    if actor is not None and not actor.is_person:
        return
    claims = () if actor is None or actor.facts is None else actor.facts.claims
    own = [text for name, text in claims if name == "email"]
    if actor is not None and actor.person_id is not None:
        own.append(actor.person_id)  # `from:<front end>:<id>` is no address, and equals none
    if email is None or email.casefold() not in [one.casefold() for one in own if "@" in one]:
        raise CapabilityAuthFlowDenied(
            "this account is of another address than the person who links it",
            fix="Agree with the account of your own address, and begin anew.",
        )


def checked_fields(fields: object) -> tuple[contract.AuthField, ...]:
    """Return the fields that a provider asks for; CapabilityInvalidOutput when they are none."""
    good = isinstance(fields, tuple) and len(fields) <= FIELDS_LIMIT
    asked: tuple[object, ...] = fields if good and isinstance(fields, tuple) else ()
    for one in asked:
        good = (
            good
            and isinstance(one, contract.AuthField)
            and is_short(one.name, NAME_CHARS)
            and is_short(one.label, NAME_CHARS)
        )
    named = [one for one in asked if isinstance(one, contract.AuthField)]
    if not good or len({one.name for one in named}) != len(named):
        raise CapabilityInvalidOutput("the provider asks for fields that cannot be shown")
    return tuple(named)
