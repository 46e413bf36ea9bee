"""`CredentialBinding`: where a credential may go, in which place, for which requests.

A cage holds a placeholder; the network gate puts the value in its place for a request that
`decide_request` allows, at one of the binding's destinations, in one of its places. Nothing here
knows a value.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import field
from enum import StrEnum
from typing import Final, TypeAlias

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision, fail_closed
from kaged.kernel.hosts import NetTargetInvalid, normalise_host
from kaged.kernel.net import MAX_PORT, NetTarget
from kaged.kernel.request_paths import RequestPathInvalid, parse_path
from kaged.kernel.request_rules import GitRule, GraphqlRule, RequestRule, Rule, rules_decide

HTTPS_PORT: Final = 443
PLACEHOLDER_PREFIX: Final = "kgd_"
PLACEHOLDER_ENTROPY_BYTES: Final = 20
PLACEHOLDER: Final = re.compile(r"kgd_[a-z2-7]{32}")
"""A whole placeholder, which has the same length for every credential."""
MAX_NAME_CHARS: Final = 64
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_PARAMETER = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
# Headers that say where a request goes or how long it is; a value there would change the request.
_NO_PLACES: Final = frozenset(
    [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "content-encoding",
    ]
)


class BindingInvalid(KagedError):
    """The binding is too wide, or a part of it is no such thing."""

    code = "credential_binding_invalid"


@dataclass(frozen=True, slots=True)
class Destination:
    """One host and port that a credential may be sent to.

    `tls` False is for a server without TLS, which the operator must have said: whoever is on the
    way to it reads the value.
    """

    host: str
    port: int = HTTPS_PORT
    tls: bool = True

    def __post_init__(self) -> None:
        """Normalise the host; refuse what is none, and ports that are none."""
        object.__setattr__(self, "host", normalise_host(self.host))
        if not 0 < self.port <= MAX_PORT:
            raise NetTargetInvalid(f"a port is a number from 1 to {MAX_PORT}")

    @property
    def text(self) -> str:
        """The destination as `host:port`."""
        return self.target.text

    @property
    def target(self) -> NetTarget:
        """The network grant that this destination implies."""
        return NetTarget(self.host, self.port)


class PlaceKind(StrEnum):
    """Where in a request a value may stand."""

    HEADER = "header"
    BEARER = "bearer"  # Authorization with the word Bearer
    BASIC = "basic"  # the password of Authorization with the word Basic
    BASIC_USER = "basic_user"  # the user name of it
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class Place:
    """One place for a value. The placeholder must be all that stands there.

    `name` is the header (lower case) or the query parameter; for `BASIC` the user name that must
    stand beside the value, empty for any. `prefix` is what comes before the value in a header,
    such as `token `; its letter case does not count.
    """

    kind: PlaceKind
    name: str = ""
    prefix: str = ""

    def __post_init__(self) -> None:
        """Refuse a header that says where a request goes, and names that are none."""
        if self.kind is PlaceKind.HEADER:
            object.__setattr__(self, "name", self.name.lower())
            if not _HEADER.fullmatch(self.name) or self.name in _NO_PLACES:
                raise BindingInvalid(
                    f"A credential cannot stand in the header {self.name[:64]!a}.",
                    fix="name the header that the server reads the key from, such as X-Api-Key",
                )
        elif self.kind is PlaceKind.QUERY and not _PARAMETER.fullmatch(self.name):
            raise BindingInvalid(
                "A query place needs the name of the parameter.", fix="write query:NAME"
            )
        if len(self.prefix) > MAX_NAME_CHARS or not self.prefix.isascii():
            raise BindingInvalid("The prefix of a place has at most 64 ASCII characters.")
        if any(ord(char) < ord(" ") for char in self.prefix):
            raise BindingInvalid("The prefix of a place has no control characters.")

    @property
    def header(self) -> str:
        """The header in which the value stands, empty for a query parameter."""
        match self.kind:
            case PlaceKind.HEADER:
                return self.name
            case PlaceKind.QUERY:
                return ""
            case _:
                return "authorization"


BEARER: Final = Place(PlaceKind.BEARER)
ANY_BASIC: Final = Place(PlaceKind.BASIC)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much one cage may send to a binding's destinations; None is no bound of its own."""

    body_bytes: int | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class CredentialBinding:
    """A credential's name and where its value may go. Without rules, every request may have it.

    `ca_file` names certificates of the operator that its destinations are checked with, instead of
    the machine's.
    """

    name: str
    destinations: tuple[Destination, ...]
    places: tuple[Place, ...] = (BEARER,)
    rules: tuple[Rule, ...] = ()
    limits: RequestLimits = RequestLimits()
    ca_file: str = ""

    def __post_init__(self) -> None:
        """Refuse a binding without a name, a destination or a place."""
        if not _NAME.fullmatch(self.name):
            raise BindingInvalid(
                f"{self.name[:64]!a} is not the name of a credential.",
                fix="use lower-case letters, digits, - and _, beginning with a letter",
            )
        if not self.destinations or not self.places:
            raise BindingInvalid(
                f"The credential {self.name} is bound to no host or no place.",
                fix="name the hosts that it may be sent to, and where in a request",
            )

    def reaches(self, host: str, port: int) -> Destination | None:
        """Return the destination that is this normalised host and port, or None."""
        for one in self.destinations:
            if one.host == host and one.port == port:
                return one
        return None


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What of a request is decided about: its line, without headers and body.

    `path` is as the client wrote it, `query` what stands after the question mark.
    """

    method: str
    host: str
    port: int
    path: str
    query: str = field(default="", repr=False)


@fail_closed("credential.request")
def decide_request(binding: CredentialBinding, request: RequestLine) -> Decision:
    """Decide whether a request may carry the credential of a binding.

    For a push of Git or an operation of GraphQL this is necessary, not sufficient: what stands in
    the body is decided by the rule that `body_rule` returns.
    """
    try:
        host = normalise_host(request.host)
    except NetTargetInvalid as error:
        return Decision.deny("credential.destination", error.message, error.fix or "")
    if binding.reaches(host, request.port) is None:
        return Decision.deny(
            "credential.destination",
            f"The credential {binding.name} is not bound to"
            f" {NetTarget(host, request.port).text if 0 < request.port <= MAX_PORT else host}.",
            f"bind {binding.name} to that host, if that is meant",
        )
    if not _METHOD.fullmatch(request.method):
        return Decision.deny("credential.method", "The method of the request is none.")
    try:
        path = parse_path(request.path)
    except RequestPathInvalid as error:
        return Decision.deny("credential.path", error.message, error.fix or "")
    if not binding.rules:
        return Decision.allow("credential.destination", f"{request.method} {path.text}")
    return rules_decide(binding.rules, binding.name, request.method, path, request.query)


def body_rule(binding: CredentialBinding, request: RequestLine) -> GitRule | GraphqlRule | None:
    """Return the rule that must see the body of an allowed request, or None when none need to."""
    path = parse_path(request.path)
    # A plain rule that allows the line allows whatever stands in its body.
    for rule in binding.rules:
        if isinstance(rule, RequestRule) and rule.allow and rule.matches(request.method, path):
            return None
    for rule in binding.rules:
        if isinstance(rule, RequestRule):
            continue
        if rule.reads_body(request.method, path, request.query):
            return rule
    return None


@dataclass(frozen=True, slots=True)
class CageCredential:
    """One credential of one cage: what it is bound to and what the cage holds instead."""

    binding: CredentialBinding
    placeholder: str

    def __post_init__(self) -> None:
        """Refuse a placeholder that the gate would not know again."""
        if not PLACEHOLDER.fullmatch(self.placeholder):
            raise ValueError("a placeholder is made by new_placeholder")


class CageCredentials:
    """All credentials of one cage: looked up by placeholder, by name, and by destination."""

    def __init__(self, held: Iterable[CageCredential] = ()) -> None:
        self.held = tuple(held)
        self._by_placeholder = {one.placeholder: one for one in self.held}
        self._by_name = {one.binding.name: one for one in self.held}
        if not len(self.held) == len(self._by_placeholder) == len(self._by_name):
            raise ValueError("each credential stands once in a cage, under its own placeholder")
        bound: dict[tuple[str, int], list[CageCredential]] = {}
        for one in self.held:
            for place in dict.fromkeys((d.host, d.port) for d in one.binding.destinations):
                bound.setdefault(place, []).append(one)
        self._bound = {place: tuple(found) for place, found in bound.items()}

    def __bool__(self) -> bool:
        """Return whether the cage holds any."""
        return bool(self.held)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the credentials, sorted."""
        return tuple(sorted(self._by_name))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every bound host, sorted."""
        return tuple(sorted({host for host, _ in self._bound}))

    @property
    def targets(self) -> tuple[NetTarget, ...]:
        """The network grants that the bindings imply, sorted by host and port."""
        return tuple(NetTarget(host, port) for host, port in sorted(self._bound))

    def by_placeholder(self, placeholder: str) -> CageCredential | None:
        """Return the credential behind a placeholder of this cage, or None."""
        return self._by_placeholder.get(placeholder)

    def by_name(self, name: str) -> CageCredential | None:
        """Return the credential of this name, or None."""
        return self._by_name.get(name)

    def bound_at(self, host: str, port: int) -> tuple[CageCredential, ...]:
        """Return the credentials that may go to this normalised host and port."""
        return self._bound.get((host, port), ())

    def binds(self, host: str, port: int) -> bool:
        """Return whether any credential may go to this normalised host and port."""
        return (host, port) in self._bound


def new_placeholder(entropy: bytes) -> str:
    """Return the placeholder of these random bytes, of which there must be twenty."""
    if len(entropy) != PLACEHOLDER_ENTROPY_BYTES:
        raise ValueError(f"a placeholder is made of {PLACEHOLDER_ENTROPY_BYTES} random bytes")
    return PLACEHOLDER_PREFIX + base64.b32encode(entropy).decode("ascii").lower()


@dataclass(frozen=True, slots=True)
class SecretValue:
    """The value of a credential, on its way from the vault into one request.

    `others` are texts that are as secret as it is, such as the token it was made from.
    """

    text: str = field(repr=False)
    others: tuple[str, ...] = field(default=(), repr=False)


class NoValueReason(StrEnum):
    """Why there is no value."""

    MISSING = "missing"  # nobody has set one
    LOCKED = "locked"  # the vault is not open
    FAILED = "failed"  # the command or the renewal that makes it failed
    REVOKED = "revoked"  # the grant was taken away while the cage was running


@dataclass(frozen=True, slots=True)
class NoValue:
    """There is no value now; `detail` and `fix` are sentences for people, without any secret."""

    reason: NoValueReason
    detail: str
    fix: str = ""


ValueOf: TypeAlias = Callable[[str], Awaitable[SecretValue | NoValue]]
"""Returns the value of a credential by name, at the moment of a request."""
