"""`OidcSection`: `[auth.oidc]` of `config.toml`, signing in with OpenID Connect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kaged.base import KagedError
from kaged.config.containers import ListOf, MapOf, Mapped
from kaged.config.hostvalues import HostPath
from kaged.config.nodes import Node
from kaged.config.reading import DocumentPosition
from kaged.config.records import RecordShape, empty_map, key, optional, record
from kaged.config.shapes import Flag, TextShape, Whole

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_MAX_LISTED: Final = 1000


def parse_secure_url(text: str) -> str:
    """Read the URL of a provider or of the daemon, without a slash at its end.

    Raises:
        KagedError: `url_invalid`; it is not https, or has a query, a fragment or a password.
    """
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    secure = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if not (host and secure and plain and text.isascii() and text.isprintable()):
        raise KagedError(
            "is not an https:// URL without query and fragment",
            code="url_invalid",
            fix="write https://host/path; http:// is for 127.0.0.1 and localhost only",
        )
    return text


_URL: Final = Mapped(TextShape(max_chars=1000, pattern=r"\S+", means="a URL"), parse_secure_url,
                     "https URL")  # fmt: skip
_CLAIM: Final = TextShape(max_chars=128, pattern=r"[!-~]+", means="the name of a claim")
_GROUP: Final = TextShape(max_chars=256)
_PERSON: Final = TextShape(max_chars=128)
_WORD: Final = TextShape(max_chars=64, pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*", means="a name")
_SCOPE: Final = TextShape(max_chars=128, pattern=r"[!#-\[\]-~]+", means="a scope")


@record
class OidcSection:
    """Signing in with OpenID Connect."""

    issuer: str = key(_URL, "The provider's issuer URL, exactly as the provider writes it.")
    client_id: str = key(
        TextShape(max_chars=256, pattern=r"[!-~]+", means="a client id"),
        "The client that this daemon is at the provider.",
    )
    client_secret: str | None = optional(
        TextShape(max_chars=256),
        "The name of the entry of `[secrets]` in local.toml that holds the client's secret. Left "
        "out: a public client.",
        default=None,
    )
    cli_client_id: str | None = optional(
        TextShape(max_chars=256, pattern=r"[!-~]+", means="a client id"),
        "A public client with the device flow, for `kaged login`. Left out: no `kaged login`.",
        default=None,
    )
    public_url: str | None = optional(
        _URL,
        "How browsers and other machines reach this daemon, without a path. Left out: the address "
        "of the TCP listener.",
        default=None,
    )
    audience: str | None = optional(
        TextShape(max_chars=1000, pattern=r"[!-~]+", means="an audience"),
        "The audience that access tokens must be for. Left out: `public_url`.",
        default=None,
    )
    scopes: tuple[str, ...] = key(
        ListOf(_SCOPE, max_items=50, unique=True),
        "The scopes that are asked for; `openid` always is.",
        default=("openid", "profile"),
    )
    person_claim: str = key(
        _CLAIM,
        "The claim that is the person's id. `email` counts only where `email_verified` is true.",
        default="sub",
    )
    groups_claim: str = key(
        _CLAIM,
        "The claim with the person's groups; `a.b` is the member `b` of the claim `a`.",
        default="groups",
    )
    roles: Mapping[str, tuple[str, ...]] = key(
        MapOf(ListOf(_GROUP, max_items=_MAX_LISTED), _WORD),
        "Roles, each with the groups whose members have it.",
        default_factory=empty_map,
    )
    teams: Mapping[str, tuple[str, ...]] = key(
        MapOf(ListOf(_GROUP, max_items=_MAX_LISTED), _WORD),
        "Teams, each with the groups whose members are in it.",
        default_factory=empty_map,
    )
    allow_everyone: bool = key(
        Flag(), "Whether everybody whom the provider knows may sign in.", default=False
    )
    allow_people: tuple[str, ...] = key(
        ListOf(_PERSON, max_items=_MAX_LISTED), "The people who may sign in, by id.", default=()
    )
    allow_groups: tuple[str, ...] = key(
        ListOf(_GROUP, max_items=_MAX_LISTED), "The groups whose members may sign in.", default=()
    )
    operators: tuple[str, ...] = key(
        ListOf(_PERSON, max_items=_MAX_LISTED),
        "The people who are operators of this daemon once they have signed in, by id.",
        default=(),
    )
    operator_groups: tuple[str, ...] = key(
        ListOf(_GROUP, max_items=_MAX_LISTED),
        "The groups whose members are operators of this daemon.",
        default=(),
    )
    session_hours: int = key(
        Whole(1, 720), "After how many hours a browser has to sign in again.", default=12
    )
    introspection_seconds: int | None = optional(
        Whole(1, 300),
        "Ask the provider about access tokens that it has not signed (RFC 7662), and believe each "
        "answer for so many seconds: a token that is taken back counts for that long at most. Left "
        "out: such tokens are refused.",
        default=None,
    )
    ca_file: Path | None = optional(
        HostPath(),
        "Certificates of authorities that are trusted for the provider besides the machine's.",
        default=None,
    )


def _check_oidc(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    names = ("allow_everyone", "allow_people", "allow_groups", "operators", "operator_groups")
    if not any(given.get(name) for name in names):
        place.error(
            node,
            "lets nobody sign in",
            "name people in allow_people or groups in allow_groups, or set allow_everyone = true",
        )
    public = given.get("public_url")
    if isinstance(public, str) and urlsplit(public).path not in ("", "/"):
        place.at("public_url").error(
            node.child("public_url") or node, "has a path", "write scheme and host only"
        )


OIDC_SHAPE: Final = RecordShape(OidcSection, check=_check_oidc)
