"""Who may come in: `AccessRules` and `require_actor`, the one function that lets a request pass.

Two listeners. The Unix socket believes the kernel: the peer's uid must be the daemon's own. TCP
believes nothing by itself: the Host must be one of ours (DNS rebinding), an Origin must be our own
page (cross-site requests, cross-site WebSocket), and in secure mode there must be the bearer token,
the cookie that a launch URL gave, or a sign-in. What a sign-in presents is checked elsewhere,
because that takes questions to others; `presented_sign_in` says what there is to check.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote, urlsplit

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.coresections import AuthMode
from kaged.config.hostvalues import IpNetwork
from kaged.config.people_section import FrontEndSection
from kaged.config.token_file import TokenFile
from kaged.diagnostics.daemon_state import DaemonState
from kaged.kernel.identity import (
    FRONT_END_NAME,
    FRONT_END_PREFIX,
    OWN_PROVIDER,
    PERSON_ID,
    PRIVATE_CHAT,
    RESERVED_PREFIXES,
    SERVICE_PREFIX,
    TEAM_PREFIX,
    UNKNOWN_PERSON,
    Actor,
    People,
    VouchedBy,
)
from kaged.serve.http.connection import PeerConnection
from kaged.serve.http.credentials import CookieSessions
from kaged.serve.http.front_end import facts_of
from kaged.serve.http.invitations import Invitations, is_access_token
from kaged.serve.http.service_accounts import PREFIX as SERVICE_TOKEN_PREFIX
from kaged.serve.http.service_accounts import ServiceAccounts
from kaged.serve.signin.admission import SignedIn
from kaged.serve.signin.sign_in import CALLBACK_PATH, RESOURCE_METADATA_PATH

COOKIE_NAME = "kaged_session"
HOST_ONLY = "__Host-"
"""What cookies are called by TLS: browsers then take them from this host only, by TLS only."""
USER_HEADER = b"x-kaged-user-id"
CHAT_ID_HEADER = b"x-kaged-chat-id"
CHAT_TYPE_HEADER = b"x-kaged-chat-type"
THREAD_ID_HEADER = b"x-kaged-thread-id"
USERNAME_HEADER = b"x-kaged-username"
DISPLAY_NAME_HEADER = b"x-kaged-display-name"
FRONT_END_HEADER = b"x-kaged-front-end"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
LAUNCH_PATH = "/api/v1/auth/launch"
LOGIN_PATH = "/api/v1/auth/login"
OPENID_PATH = "/api/v1/auth/openid"
BACK_CHANNEL_PATH = "/api/v1/auth/backchannel-logout"
INVITATION_PATH = "/api/v1/auth/invitation"
INVITATION_TOKEN_PATH = f"{INVITATION_PATH}/token"
INVITATION_END_PATH = f"{INVITATION_PATH}/end"
MAX_COOKIE_CHARS = 4096
MAX_SOURCE_NAME_CHARS = 128

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# What anyone who can connect may ask: whether it is alive, how to sign in, and to trade in what is
# its own credential: a launch token, an invitation, a provider's code or logout token.
_OPEN_TO_ALL = frozenset(
    {
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
        ("GET", LAUNCH_PATH),
        ("GET", LOGIN_PATH),
        ("GET", CALLBACK_PATH),
        ("GET", OPENID_PATH),
        ("GET", RESOURCE_METADATA_PATH),
        ("POST", BACK_CHANNEL_PATH),
        ("GET", INVITATION_PATH),
        ("POST", INVITATION_PATH),
        ("POST", INVITATION_TOKEN_PATH),
        ("POST", INVITATION_END_PATH),
    }
)
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?)(?::[0-9]{1,5})?")
_USER_ID = re.compile(PERSON_ID)
_FRONT_END = re.compile(FRONT_END_NAME)
_CHAT_ID = re.compile(r"[!-~]{1,128}")
_CHAT_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of both listeners, as the configuration sets them.

    `hosts` are names without port that TCP requests may carry in Host; `origins` are full origins
    (`https://desk.example`) allowed besides our own; `trusted_proxies` may name the user.
    `shown_headers` are those that policies may see, in lower case; `keeps_tokens` lets them
    exchange the access tokens that people come with.
    """

    mode: AuthMode
    owner_uid: int
    operator_id: str
    hosts: frozenset[str] = LOOPBACK_HOSTS
    origins: frozenset[str] = frozenset()
    trusted_proxies: tuple[IpNetwork, ...] = ()
    front_end: FrontEndSection = field(default_factory=FrontEndSection)
    people: People = field(default_factory=People)
    signs_in: bool = False
    public_url: str | None = None
    shown_headers: tuple[str, ...] = ()
    keeps_tokens: bool = False

    @property
    def resource_metadata(self) -> str | None:
        """Where clients learn who gives out tokens for this daemon; None when nobody does."""
        if not self.signs_in or self.public_url is None:
            return None
        return self.public_url + RESOURCE_METADATA_PATH

    def cookie_name(self, name: str = COOKIE_NAME) -> str:
        """Return what a cookie of people who sign in is called."""
        secure = (self.public_url or "").startswith("https://")
        return HOST_ONLY + name if secure else name


def access_rules(state: DaemonState) -> AccessRules:
    """Work out the rules of both listeners from the settings in force."""
    auth = state.auth
    bind = state.bound_settings.daemon.value.daemon.bind
    own = set() if bind is None else {f"[{bind.host}]" if ":" in bind.host else bind.host}
    public = None if auth.oidc is None else auth.oidc.public_url or state.url
    public = None if public is None else public.rstrip("/").lower()
    if public is not None:
        own.add(urlsplit(public).netloc.rpartition("@")[2].partition(":")[0])
    return AccessRules(
        mode=state.mode,
        owner_uid=os.getuid(),
        operator_id=auth.operator,
        hosts=LOOPBACK_HOSTS | own | {host.lower() for host in auth.allowed_hosts},
        origins=frozenset(
            origin.lower() for origin in (*auth.allowed_origins, *([public] if public else []))
        ),
        trusted_proxies=auth.trusted_proxies,
        signs_in=auth.oidc is not None,
        public_url=public,
        front_end=auth.front_end,
        people=state.people,
        shown_headers=state.settings.daemon.value.pipeline.headers,
        keeps_tokens=state.settings.daemon.value.pipeline.delegate_tokens,
    )


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the TCP listener compares with."""

    token: TokenFile
    cookies: CookieSessions
    service_accounts: ServiceAccounts | None = None
    invitations: Invitations | None = None


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """The parts of a request that access is decided on."""

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    connection: PeerConnection | None
    websocket: bool = False
    request_id: str = ""
    _by_name: dict[bytes, list[bytes]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.headers:
            self._by_name.setdefault(name.lower(), []).append(value)

    def single(self, name: bytes) -> str | None:
        """Return the one value of a header, None when absent.

        Raises `access_denied` when it occurs twice: two readers may then believe different ones.
        """
        values = self._by_name.get(name, [])
        if len(values) > 1:
            raise KagedError(
                f"The header {name.decode('latin-1')} occurs more than once.", code="access_denied"
            )
        return values[0].decode("latin-1").strip() if values else None

    def first(self, name: bytes) -> str:
        """Return the first value of a header as it came, for the record; empty when absent."""
        return next(iter(self.all(name)), "")

    def all(self, name: bytes) -> Iterable[str]:
        """Return every value of a header."""
        return [value.decode("latin-1") for value in self._by_name.get(name, [])]


@dataclass(frozen=True, slots=True)
class PresentedSignIn:
    """What a request shows of a sign-in: a cookie for `host`, or an access token."""

    via: VouchedBy
    value: str = field(repr=False)
    host: str


def presented_sign_in(
    rules: AccessRules, credentials: Credentials, access_request: AccessRequest
) -> PresentedSignIn | None:
    """Return what has to be checked before `require_actor` can decide; None when nothing.

    Raises:
        KagedError: `host_not_allowed`, `origin_not_allowed`, `access_denied`; it may not come in,
            whatever it shows.
    """
    connection = access_request.connection
    if connection is None or connection.kind == "unix" or not rules.signs_in:
        return None
    host = _require_host(rules, access_request)
    _require_origin(rules, access_request, host)
    if rules.mode is AuthMode.INSECURE or _is_open_to_all(access_request):
        return None
    authorization = access_request.single(b"authorization")
    if authorization is not None:
        token = _bearer_of(authorization)
        if token is None or credentials.token.matches(token):
            return None
        if token.startswith(SERVICE_TOKEN_PREFIX) or is_access_token(token):
            return None  # a service account's or an invited person's: `require_actor` knows them
        return PresentedSignIn(VouchedBy.ACCESS_TOKEN, token, host)
    cookie = cookie_of(access_request, rules.cookie_name())
    if cookie is None or is_access_token(cookie) or credentials.cookies.valid(cookie):
        return None
    return PresentedSignIn(VouchedBy.SIGN_IN, cookie, host)


def require_actor(
    rules: AccessRules,
    credentials: Credentials,
    access_request: AccessRequest,
    signed_in: SignedIn | None = None,
) -> Actor:
    """Let a request in and return who acts; `signed_in` is whose sign-in it has shown.

    Raises:
        KagedError: `host_not_allowed`, `origin_not_allowed`, `access_denied`, `unauthenticated`,
            `token_expired`, `token_revoked`; it may not come in.
    """
    connection = access_request.connection
    if connection is None:
        raise KagedError("The origin of this request is unknown.", code="access_denied")
    if connection.kind == "unix":
        return _require_unix_actor(rules, connection, access_request)
    host = _require_host(rules, access_request)
    origin = _require_origin(rules, access_request, host)
    if _is_open_to_all(access_request):
        return Actor.operator(None, VouchedBy.OPEN, access_request.request_id)
    account = _service_account(credentials, access_request)
    if account is not None:
        return account
    invited = _invited(rules, credentials, access_request, origin)
    if invited is not None:
        return invited
    via = _require_credential(rules, credentials, access_request, signed_in)
    if via not in (VouchedBy.BEARER, VouchedBy.ACCESS_TOKEN):
        # The browser adds a cookie, or in insecure mode nothing is needed at all: make sure that
        # it is our own page which asks, not one that merely runs in the same browser.
        needs_origin = via in (VouchedBy.COOKIE, VouchedBy.SIGN_IN)
        _require_own_page(access_request, origin, needs_origin=needs_origin)
    if signed_in is not None:
        return _signed_in_actor(rules, access_request, connection, via, signed_in)
    return _person(rules, access_request, connection, via)


def is_loopback(host: str) -> bool:
    """Return whether a bind address stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def cookie_of(access_request: AccessRequest, name: str = COOKIE_NAME) -> str | None:
    """Read a cookie, None when there is none or the header makes no sense."""
    for header in access_request.all(b"cookie"):
        if len(header) > MAX_COOKIE_CHARS:
            continue
        try:
            jar = SimpleCookie(header)
        except CookieError:
            continue
        if name in jar:
            return jar[name].value
    return None


def host_of(access_request: AccessRequest) -> str:
    """Return the name under which the daemon was asked; `require_actor` has checked it."""
    return access_request.first(b"host").strip().lower()


def _is_open_to_all(access_request: AccessRequest) -> bool:
    asked = (access_request.method, access_request.path)
    return not access_request.websocket and asked in _OPEN_TO_ALL


def _bearer_of(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _require_unix_actor(
    rules: AccessRules, connection: PeerConnection, access_request: AccessRequest
) -> Actor:
    if connection.uid is None or connection.uid != rules.owner_uid:
        raise KagedError(
            f"This daemon belongs to uid {rules.owner_uid}; you are uid {connection.uid}.",
            code="access_denied",
            fix="Run the command as the user who runs the daemon, or start a daemon of your own.",
        )
    if access_request.single(b"origin") is not None:
        raise KagedError("Web pages may not use the Unix socket.", code="origin_not_allowed")
    person_id = None if rules.mode is AuthMode.INSECURE else rules.operator_id
    return Actor.operator(person_id, VouchedBy.UNIX, access_request.request_id)


def _require_host(rules: AccessRules, access_request: AccessRequest) -> str:
    host = (access_request.single(b"host") or "").lower()
    match = _HOST.fullmatch(host)
    if match is None or match[1] not in rules.hosts:
        raise KagedError(
            f"The Host {host[:100]!r} is not one of this daemon's names.",
            code="host_not_allowed",
            fix="Use 127.0.0.1 or localhost, or name the host in [auth] allowed_hosts.",
        )
    return host


def _require_origin(rules: AccessRules, access_request: AccessRequest, host: str) -> str | None:
    origin = access_request.single(b"origin")
    if origin is None:
        return None
    origin = origin.lower()
    if origin != f"http://{host}" and origin not in rules.origins:
        raise KagedError(
            f"Pages of {origin[:100]!r} may not use this daemon.",
            code="origin_not_allowed",
            fix="If that page is yours, name its origin in [auth] allowed_origins.",
        )
    return origin


def _service_account(credentials: Credentials, access_request: AccessRequest) -> Actor | None:
    """Return the service account whose token came along. What else it says names nobody."""
    authorization = access_request.single(b"authorization") or ""
    token = _bearer_of(authorization) or ""
    if credentials.service_accounts is None or not token.startswith(SERVICE_TOKEN_PREFIX):
        return None
    return credentials.service_accounts.actor(token, access_request.request_id)


def _invited(
    rules: AccessRules, credentials: Credentials, access_request: AccessRequest, origin: str | None
) -> Actor | None:
    """Return the invited person whose token or cookie came along."""
    if credentials.invitations is None:
        return None
    authorization = access_request.single(b"authorization")
    if authorization is not None:
        shown = _bearer_of(authorization) or ""
    else:
        shown = cookie_of(access_request, rules.cookie_name()) or ""
    if not is_access_token(shown):
        return None
    if authorization is None:
        _require_own_page(access_request, origin, needs_origin=True)
    return credentials.invitations.actor(shown, rules.people, access_request.request_id)


def _require_credential(
    rules: AccessRules,
    credentials: Credentials,
    access_request: AccessRequest,
    signed_in: SignedIn | None,
) -> VouchedBy:
    if rules.mode is AuthMode.INSECURE:
        return VouchedBy.INSECURE
    authorization = access_request.single(b"authorization")
    if authorization is not None:
        token = _bearer_of(authorization)
        if token is not None and credentials.token.matches(token):
            return VouchedBy.BEARER
        if token is not None and signed_in is not None:
            return VouchedBy.ACCESS_TOKEN
        raise KagedError(
            "The bearer token is not this daemon's.",
            code="unauthenticated",
            fix="Get the current one with `kaged daemon token`.",
        )
    cookie = cookie_of(access_request)
    if cookie is not None and credentials.cookies.valid(cookie):
        return VouchedBy.COOKIE
    if signed_in is not None:
        return VouchedBy.SIGN_IN
    fix = "Send `Authorization: Bearer $(kaged daemon token)`, or run `kaged daemon open`."
    raise KagedError(
        "Over TCP this daemon requires its bearer token or a browser session.",
        code="unauthenticated",
        fix=f"Sign in at {LOGIN_PATH}. If you are the operator: {fix}" if rules.signs_in else fix,
    )


def _require_own_page(
    access_request: AccessRequest, origin: str | None, *, needs_origin: bool
) -> None:
    site = access_request.single(b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        # `same-site` is not enough: sites ignore ports, and another program may own the next port.
        raise KagedError(
            "Another page in your browser tried to use the daemon.", code="origin_not_allowed"
        )
    changes = access_request.websocket or access_request.method not in _SAFE_METHODS
    if needs_origin and changes and origin is None and site != "same-origin":
        raise KagedError(
            "A browser session needs an Origin header for this request.", code="origin_not_allowed"
        )


def _signed_in_actor(
    rules: AccessRules,
    access_request: AccessRequest,
    connection: PeerConnection,
    vouched_by: VouchedBy,
    signed_in: SignedIn,
) -> Actor:
    """Return the person who signed in, alone with the daemon; an operator if configured as one."""
    if access_request.single(USER_HEADER) is not None and _trusted_proxy(rules, connection):
        # Two different people, and no way to tell who is meant.
        raise KagedError(
            "The proxy named a user for a request of somebody who signed in.",
            code="access_denied",
            fix="leave X-Kaged-User-Id out, or send the daemon's own bearer token with it",
        )
    facts = signed_in.facts
    if signed_in.operator:
        operator = Actor.operator(facts.person_id, vouched_by, access_request.request_id)
        return replace(operator, facts=facts)
    grant = rules.people.grant_of(facts.person_id)
    actor = Actor.person(facts, grant, vouched_by, access_request.request_id)
    return replace(actor, chat_type=PRIVATE_CHAT, provider=OWN_PROVIDER)


def _person(
    rules: AccessRules,
    access_request: AccessRequest,
    connection: PeerConnection,
    vouched_by: VouchedBy,
) -> Actor:
    """Return the operator, or the person and chat that a trusted front end speaks for."""
    request_id = access_request.request_id
    if rules.mode is AuthMode.INSECURE:
        return Actor.operator(None, vouched_by, request_id)
    named, proxy = access_request.single(USER_HEADER), _trusted_proxy(rules, connection)
    if named is None or proxy is None:
        return Actor.operator(rules.operator_id, vouched_by, request_id)
    if _USER_ID.fullmatch(named) is None or named.startswith(RESERVED_PREFIXES):
        raise KagedError(
            "The proxy named a user id that is not one.",
            code="access_denied",
            fix="X-Kaged-User-Id takes letters, digits and . _ @ + = : - (128 at most), and no "
            f"name of a service account ({SERVICE_PREFIX}…), of the invited ({TEAM_PREFIX}…) or of "
            f"another front end's person ({FRONT_END_PREFIX}…).",
        )
    if named == rules.operator_id == UNKNOWN_PERSON:
        # Linked accounts go by this id. Who is the operator elsewhere, too, has set it to that id.
        raise KagedError(
            f"The proxy named a person {named}, as the operator is called here.",
            code="access_denied",
            fix="Name the person otherwise, or set [auth] operator to the id that is yours.",
        )
    chat_id = access_request.single(CHAT_ID_HEADER) or None
    chat_type = (access_request.single(CHAT_TYPE_HEADER) or "").lower() or None
    if chat_id is not None and _CHAT_ID.fullmatch(chat_id) is None:
        raise KagedError("The proxy named a chat id that is not one.", code="access_denied")
    if chat_type is not None and _CHAT_TYPE.fullmatch(chat_type) is None:
        raise KagedError("The proxy named a chat type that is not one.", code="access_denied")
    thread_id = access_request.single(THREAD_ID_HEADER) or None
    if thread_id is not None and _CHAT_ID.fullmatch(thread_id) is None:
        raise KagedError("The proxy named a thread id that is not one.", code="access_denied")
    front_end = _front_end(access_request)
    if front_end is not None and front_end not in rules.front_end.same_people:
        named = _people_of(front_end, named)
    facts = facts_of(named, rules.front_end, access_request.single)
    return replace(
        Actor.person(facts, rules.people.grant_of(named), vouched_by, request_id),
        chat_type=chat_type,
        chat_id=chat_id,
        # Without a name it goes by its address: two of them do not share their chats by accident.
        provider=front_end or str(proxy),
        thread_id=thread_id,
        source_username=_source_name(access_request, USERNAME_HEADER),
        source_display_name=_source_name(access_request, DISPLAY_NAME_HEADER),
    )


def _front_end(access_request: AccessRequest) -> str | None:
    """Return the name that a trusted front end gives itself. It may name anybody, so also this."""
    name = access_request.single(FRONT_END_HEADER) or None
    if name is not None and (_FRONT_END.fullmatch(name) is None or name == OWN_PROVIDER):
        raise KagedError(
            "The front end has a name that is none.",
            code="access_denied",
            fix="X-Kaged-Front-End takes a lower-case letter, then lower-case letters, digits, _ "
            f"and - (32 at most), and not {OWN_PROVIDER}.",
        )
    return name


def _people_of(front_end: str, named: str) -> str:
    """Return the id of somebody whom a front end knows by an id of its own."""
    person_id = f"{FRONT_END_PREFIX}{front_end}:{named}"
    if _USER_ID.fullmatch(person_id) is None:
        raise KagedError("The proxy named a user id that is too long.", code="access_denied")
    return person_id


def _source_name(access_request: AccessRequest, header: bytes) -> str | None:
    """Return what a chat calls the person; headers are Latin-1, so others are percent-encoded."""
    said = access_request.single(header)
    if not said:
        return None
    name = unquote(said, errors="replace").strip()
    if len(name) > MAX_SOURCE_NAME_CHARS or not name.isprintable():
        raise KagedError("The proxy named a person by no usable name.", code="access_denied")
    return name or None


def _trusted_proxy(rules: AccessRules, connection: PeerConnection) -> IpNetwork | None:
    """Return the entry of the configuration that trusts an address; None if none does."""
    try:
        address = ipaddress.ip_address(connection.address or "")
    except ValueError:
        return None
    for network in rules.trusted_proxies:
        if network.version == address.version and address in network:
            return network
    return None
