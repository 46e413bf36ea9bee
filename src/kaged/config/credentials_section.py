"""`[credentials.NAME]` of `config.toml`: a credential that cages use without holding it.

Where its value comes from, where the gate may put it, what the cage sees in its place, and for
whom. A section that is wrong is out of use and says why; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kaged.base import JsonObject, KagedError
from kaged.config.cageblock import CREDENTIAL_NAME, ENV_NAME
from kaged.config.containers import Hidden, ListOf, Mapped, OneOrList
from kaged.config.hostvalues import CommandShape, HostPath
from kaged.config.nodes import Node
from kaged.config.problems import ConfigFileInvalid, Severity
from kaged.config.reading import INVALID, DocumentPosition, Reading
from kaged.config.records import RecordShape, key, optional, record, strict
from kaged.config.secret import Secret
from kaged.config.sections import SectionsOf
from kaged.config.shapes import Choice, Flag, Number, TextShape, Whole
from kaged.config.tomldoc import parse_toml
from kaged.config.variables import WithVariables
from kaged.kernel.addresses import canonical_address
from kaged.kernel.bindings import (
    BEARER,
    HTTPS_PORT,
    CredentialBinding,
    Destination,
    Place,
    PlaceKind,
    RequestLimits,
)
from kaged.kernel.credential_grants import EVERY, CredentialGrant
from kaged.kernel.hosts import LOCALHOST
from kaged.kernel.request_rules import GitRule, GraphqlRule, RequestRule, Rule, read_only

MAX_LISTED: Final = 100
MAX_VALUE_CHARS: Final = 64 * 1024
_METHOD: Final = re.compile(r"[A-Z][A-Z-]{0,31}(,[A-Z][A-Z-]{0,31})*|\*")
_RULE_FIX: Final = (
    "write METHOD /path, deny METHOD /path, git fetch /repo, git push BRANCH /repo, "
    "graphql query NAME /path, graphql mutation NAME /path, or read /path"
)
_PLACE_FIX: Final = "write bearer, basic, basic:USER, basic-user, header:NAME or query:NAME"


class CredentialFile(StrEnum):
    """A file that tools look for credentials in, which the cage gets with the placeholder."""

    NETRC = "netrc"
    NPMRC = "npmrc"
    PIP = "pip"
    GIT = "git-credentials"


def _too_wide(message: str) -> KagedError:
    return KagedError(
        message, code="credential_too_wide", fix="name each host, such as api.github.com"
    )


def parse_destination(text: str) -> Destination:
    """Read `host`, `host:port`, or `http://host:port` for a server without TLS.

    Raises:
        KagedError: `credential_too_wide`; a pattern, or a name that stands for many hosts.
        NetTargetInvalid: it is no host or port.
    """
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme not in {"http", "https"}:
        raise KagedError(
            "is no address of an HTTP server",
            code="host_value_invalid",
            fix="write host or host:port",
        )
    if "*" in rest or "?" in rest:
        raise _too_wide("stands for more than one host; a credential is bound to whole host names")
    tls = scheme != "http"
    host, port = rest.removesuffix("/"), HTTPS_PORT if tls else 80
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:]*):([0-9]{1,5})", host)
    if found is not None:
        host, port = found[1], int(found[2])
    made = Destination(host, port, tls)
    if "." not in made.host and made.host != LOCALHOST and canonical_address(made.host) is None:
        raise _too_wide("is a single word, and whole top-level domains are not bound")
    return made


def parse_place(text: str) -> Place:
    """Read where in a request a value may stand.

    `header:Authorization token` is a header in which the value follows the word `token`.

    Raises:
        KagedError: it is no place.
    """
    kind, _, name = text.partition(":")
    match kind:
        case "bearer" if not name:
            return BEARER
        case "basic":
            return Place(PlaceKind.BASIC, name)
        case "basic-user" if not name:
            return Place(PlaceKind.BASIC_USER)
        case "header" if name:
            header, blank, prefix = name.partition(" ")
            return Place(PlaceKind.HEADER, header, f"{prefix} " if blank else "")
        case "query" if name:
            return Place(PlaceKind.QUERY, name)
        case _:
            raise KagedError(
                "is no place in a request", code="credential_place_invalid", fix=_PLACE_FIX
            )


def parse_rule(text: str) -> Rule:
    """Read one rule about requests.

    Raises:
        KagedError: it is none.
    """
    words = text.split()
    match words:
        case ["git", "fetch", path]:
            return GitRule(path)
        case ["git", "push", *refs, path] if refs:
            return GitRule(path, push=tuple(refs))
        case ["graphql", "query", *names, path] if names:
            return GraphqlRule(path, queries=tuple(names))
        case ["graphql", "mutation", *names, path] if names:
            return GraphqlRule(path, queries=(), mutations=tuple(names))
        case ["read", path]:
            return read_only(path)
        case ["deny", methods, path] if _METHOD.fullmatch(methods):
            return RequestRule(_methods(methods), path, allow=False)
        case [methods, path] if _METHOD.fullmatch(methods):
            return RequestRule(_methods(methods), path)
        case _:
            raise KagedError("is no rule", code="credential_rule_invalid", fix=_RULE_FIX)


def _methods(text: str) -> tuple[str, ...]:
    return () if text == "*" else tuple(text.split(","))


_HOST: Final = Mapped(TextShape(max_chars=300), parse_destination, "host or host:port")
_PLACE: Final = Mapped(TextShape(max_chars=200), parse_place, "place in a request")
_RULE: Final = Mapped(TextShape(max_chars=2000), parse_rule, "rule about requests")
_PATH: Final = TextShape(max_chars=1024, pattern=r"/\S*", means="a path such as /repos/**")
_VERB: Final = TextShape(max_chars=32, pattern=r"[A-Z][A-Z-]*", means="a method such as GET")
_WHO: Final = TextShape(max_chars=4000)
_NAMES: Final = ListOf(_WHO, max_items=MAX_LISTED, unique=True)


@record
class CredentialFor:
    """Who may use the credential. Nobody does until somebody is named."""

    projects: tuple[str, ...] = key(
        _NAMES, "Projects by id, name or folder whose agents may use it; `*` is every one.",
        default=(),
    )  # fmt: skip
    agents: tuple[str, ...] = key(
        _NAMES, "Agents of those projects, as paths or globs. Left out: each that asks for it.",
        default=(),
    )  # fmt: skip
    people: tuple[str, ...] = key(
        _NAMES, "People, by id: only what agents do for them. Left out: whoever they act for.",
        default=(),
    )  # fmt: skip
    skills: tuple[str, ...] = key(
        _NAMES, "Skills: only commands that belong to them. Left out: every command.", default=()
    )
    mcp: tuple[str, ...] = key(
        _NAMES, "Outside MCP servers, by name, whose sections ask for it.", default=()
    )

    def grant(self) -> CredentialGrant:
        """Return it as the kernel decides with it."""
        return CredentialGrant(
            projects=self.projects,
            agents=self.agents,
            people=self.people,
            skills=self.skills,
            mcp=self.mcp,
        )


@record
class CredentialShown:
    """What a cage sees: variables and files with a placeholder."""

    env: tuple[str, ...] = key(
        ListOf(ENV_NAME, max_items=MAX_LISTED, unique=True),
        "Variables that hold the placeholder, such as `GITHUB_TOKEN`.",
        default=(),
    )
    files: tuple[CredentialFile, ...] = key(
        ListOf(Choice(CredentialFile), unique=True),
        "Files of tools that hold it: `netrc`, `npmrc`, `pip`, `git-credentials`.",
        default=(),
    )


@record
class OAuthClient:
    """A client of an OAuth 2 server that gets access tokens, and renews them."""

    token_url: str = key(
        TextShape(max_chars=2000, pattern=r"https?://\S+", means="an https URL"),
        "The server's token endpoint.",
    )
    client_id: str = key(
        TextShape(max_chars=256, pattern=r"[!-~]+", means="a client id"), "The client."
    )
    client_secret: str | None = optional(
        TextShape(max_chars=256),
        "The name of the entry of `[secrets]` in local.toml with the client's secret.",
        default=None,
    )
    scopes: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=256, pattern=r"[!-~]+", means="a scope"), max_items=50),
        "The scopes that are asked for.",
        default=(),
    )


@record
class CredentialSection:
    """A credential that programs in cages use without seeing it."""

    hosts: tuple[Destination, ...] = key(
        ListOf(_HOST, min_items=1, max_items=MAX_LISTED, unique=True),
        "Where it may go: whole host names, port 443 if none is given; `http://host` means without "
        "TLS.",
    )
    place: tuple[Place, ...] = key(
        OneOrList(ListOf(_PLACE, min_items=1, max_items=8, unique=True), "place or list of places"),
        "Where in a request it may stand: `bearer`, `basic`, `basic:USER`, `basic-user`, "
        "`header:NAME`, `header:NAME WORD`, `query:NAME`.",
        default=(BEARER, Place(PlaceKind.BASIC)),
    )
    paths: tuple[str, ...] = key(
        ListOf(_PATH, max_items=MAX_LISTED),
        "Paths that it may be used for; `*` within a segment, `**` across. Left out: every path.",
        default=(),
    )
    methods: tuple[str, ...] = key(
        ListOf(_VERB, max_items=20), "Methods that it may be used for. Left out: every one.",
        default=(),
    )  # fmt: skip
    rules: tuple[Rule, ...] = key(
        ListOf(_RULE, max_items=MAX_LISTED),
        "Rules about requests, such as `GET /repos/acme/**`, `git push agent/* /acme/shop` or "
        "`read /simple/**`. With any, only what one of them allows.",
        default=(),
    )
    body_bytes: int | None = optional(
        Whole(0, 2**50), "The largest body of a request, in bytes.", default=None
    )
    requests_per_minute: int | None = optional(
        Whole(1, 1_000_000), "How many requests one cage may make in a minute.", default=None
    )
    ca_file: Path | None = optional(
        HostPath(),
        "Certificates that its hosts are checked with, instead of the machine's.",
        default=None,
    )
    user: str = key(
        TextShape(max_chars=128, pattern=r"[A-Za-z0-9._@+-]+", means="a user name"),
        "The user name that stands beside it in files of tools.",
        default="x-access-token",
    )
    vault: bool = key(
        Flag(),
        "Whether its value is kept in the vault, where `kaged credential set` puts it. Without "
        "another source, and without a value in local.toml, it is.",
        default=False,
    )
    keyring: str | None = optional(
        TextShape(max_chars=256),
        "The entry of the operator's keyring that holds its value, as `SERVICE/USER`.",
        default=None,
    )
    command: tuple[str, ...] | None = optional(
        CommandShape(),
        "A program of the operator's that prints its value. It runs outside every cage.",
        default=None,
    )
    command_seconds: float = key(Number(0.1, 600), "How long that program may take.", default=10.0)
    cache_seconds: float = key(
        Number(0, 86400), "How long what the program printed is used.", default=300.0
    )
    oauth: OAuthClient | None = optional(
        RecordShape(OAuthClient, unknown=Severity.ERROR),
        "A client of an OAuth 2 server. With a refresh token in the vault it is that token's "
        "client, without one it asks for itself.",
        default=None,
    )
    shown: CredentialShown = key(
        strict(CredentialShown), "What a cage sees in its place.",
        default_factory=CredentialShown, name="as",
    )  # fmt: skip
    granted: CredentialFor = key(
        strict(CredentialFor), "Who may use it.", default_factory=CredentialFor, name="for"
    )

    def binding(self, name: str) -> CredentialBinding:
        """Return it as the gate enforces it."""
        plain: tuple[Rule, ...] = ()
        if self.paths or self.methods:
            plain = tuple(RequestRule(self.methods, path) for path in self.paths or ("/**",))
        return CredentialBinding(
            name,
            self.hosts,
            self.place,
            (*plain, *self.rules),
            RequestLimits(self.body_bytes, self.requests_per_minute),
            "" if self.ca_file is None else str(self.ca_file),
        )


def _check_credential(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    sources = [name for name in ("vault", "keyring", "command", "oauth") if given.get(name)]
    if len(sources) > 1 and sources != ["vault", "oauth"]:
        place.error(
            node,
            f"names several sources of its value: {', '.join(sources)}",
            "keep one of them",
            "conflicting_keys",
        )
    keyring = given.get("keyring")
    if isinstance(keyring, str) and not all(keyring.partition("/")):
        place.at("keyring").error(
            node.child("keyring") or node, "is no entry of a keyring", "write SERVICE/USER"
        )
    granted = given.get("granted")
    if isinstance(granted, CredentialFor):
        for listed in ("agents", "people", "skills"):
            if getattr(granted, listed) and not granted.projects:
                place.at("for", listed).error(
                    node.child("for") or node,
                    "narrows down the agents of projects, and no project is named",
                    f'name projects, or projects = ["{EVERY}"]',
                    "missing_key",
                )


CREDENTIALS: Final = SectionsOf(
    RecordShape(CredentialSection, unknown=Severity.ERROR, check=_check_credential),
    CREDENTIAL_NAME,
)


def check_credential(name: str, values: JsonObject) -> None:
    """Check a section before it is written.

    Raises:
        ConfigFileInvalid: with everything that is wrong with it.
    """
    import tomlkit  # noqa: PLC0415 - slow to import, needed only for edits

    parsed = parse_toml(tomlkit.dumps({name: values}), f"[credentials.{name}]")
    reading = Reading(f"[credentials.{name}]", base=Path("/"))
    reading.add(parsed.problems)
    found = INVALID if parsed.node is None else CREDENTIALS.read(parsed.node, reading.top)
    sections = reading.finish(found).value
    if sections.broken:
        raise ConfigFileInvalid(sections.broken[name])


@record
class CredentialValue:
    """The value of a credential (`local.toml`)."""

    value: Secret[str] = key(
        Hidden(TextShape(max_chars=MAX_VALUE_CHARS)), "The value; better written as `${VAR}`."
    )


CREDENTIAL_VALUES: Final = SectionsOf(WithVariables(strict(CredentialValue)), CREDENTIAL_NAME)
