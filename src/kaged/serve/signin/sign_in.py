"""`SignIn`: the sign-ins of one daemon, as the HTTP edge asks for them.

A person is a browser with a cookie, or a program with an access token. Both become `SignedIn`, by
the same rule and with the configuration of this moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from kaged.base import Clock, JsonObject, KagedError
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.oidc import OidcSection
from kaged.config.settings import Settings
from kaged.config.token_file import TOKEN_BYTES, digest_secret
from kaged.kernel.identity import PersonFacts
from kaged.serve.signin.admission import SignedIn, admit, admit_again, kept_claims
from kaged.serve.signin.errors import (
    SignInNotAllowed,
    SignInRefused,
    SignInUnavailable,
    TokenRefused,
)
from kaged.serve.signin.flow import FlowSealer, SignInFlow
from kaged.serve.signin.introspection import TokenIntrospection, is_signed
from kaged.serve.signin.provider import OpenIdProvider
from kaged.serve.signin.verifier import TokenVerifier
from kaged.store import Store
from kaged.store.sign_in_rows import SignInRecord, SignOut, SignOutOf

CALLBACK_PATH: Final = "/api/v1/auth/callback"
RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
MAX_LOGOUTS: Final = 1024

_log = get_logger("kaged.sign_in")
# A path of this daemon, and nothing that a browser would take for another host.
_RETURN_TO: Final = re.compile(r"/(?:[!-.0-\[\]-~][!-\[\]-~]{0,999})?")


@dataclass(frozen=True, slots=True)
class BegunSignIn:
    """Where to send a browser, and the cookie that it has to bring back."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session that was just opened: the cookie's value, in clear for this one answer."""

    cookie: str
    signed_in: SignedIn
    return_to: str
    issuer: str
    expires_at_ms: int
    lifetime_s: int


@dataclass(frozen=True, slots=True)
class _Client:
    """The provider and the checks for what the configuration says now."""

    section: OidcSection
    secret: str | None
    provider: OpenIdProvider
    verifier: TokenVerifier
    introspection: TokenIntrospection | None


class SignIn:
    """Lets people sign in. Without `[auth.oidc]` nobody does, and nothing is asked of anybody."""

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        store: Store,
        clock: Clock,
        base_url: Callable[[], str | None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._base_url = base_url
        self._sealer = FlowSealer(clock)
        self._known: _Client | None = None
        self._logouts: OrderedDict[str, None] = OrderedDict()
        self._change = asyncio.Event()

    # -- what is configured --------------------------------------------------------------------

    @property
    def section(self) -> OidcSection | None:
        """The settings in force; None when nobody signs in."""
        return self._settings().daemon.value.auth.oidc

    @property
    def secure(self) -> bool:
        """Whether browsers reach the daemon by TLS."""
        return (self.public_url or "").startswith("https://")

    @property
    def public_url(self) -> str | None:
        """How others reach this daemon; None without a TCP listener."""
        section = self.section
        found = section.public_url if section is not None else None
        url = found or self._base_url()
        return None if url is None else url.rstrip("/")

    def require_section(self) -> OidcSection:
        """Return the settings. Raises `sign_in_disabled` when there are none."""
        section = self.section
        if section is None:
            raise KagedError(
                "Nobody can sign in to this daemon.",
                code="sign_in_disabled",
                fix="describe a provider in [auth.oidc] of config.toml",
            )
        return section

    def require_public_url(self) -> str:
        """Return how others reach this daemon. Raises `tcp_disabled`."""
        url = self.public_url
        if url is None:
            raise KagedError(
                "This daemon listens on its Unix socket only, which browsers cannot use.",
                code="tcp_disabled",
                fix="Set an address in [daemon] bind and restart the daemon.",
            )
        return url

    def resource_metadata(self) -> JsonObject:
        """Return what RFC 9728 says about a protected resource: where tokens for it come from."""
        section = self.require_section()
        return {
            "resource": _resource(section, self.require_public_url()),
            "authorization_servers": [section.issuer],
            "scopes_supported": list(section.scopes),
            "bearer_methods_supported": ["header"],
            "resource_name": "kaged",
        }

    # -- browsers ------------------------------------------------------------------------------

    async def begin(self, return_to: str, host: str) -> BegunSignIn:
        """Begin a sign-in for a browser that asked on `host`.

        Raises:
            KagedError: `sign_in_disabled`, `sign_in_unavailable`, `invalid_request`.
        """
        if _RETURN_TO.fullmatch(return_to) is None:
            raise KagedError(
                "return_to is no path of this daemon.",
                code="invalid_request",
                fix="write a path that begins with one slash, such as /api/v1/auth/whoami",
            )
        client = self._client()
        url = self.require_public_url()
        metadata = await client.provider.metadata()
        flow = SignInFlow.new(self._clock, return_to, host, url + CALLBACK_PATH)
        # Heavy, and of no use to a daemon where nobody signs in.
        from authlib.oauth2.rfc6749.parameters import (  # noqa: PLC0415 - see above
            prepare_grant_uri,
        )
        from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415 - see above

        scopes = dict.fromkeys(("openid", *client.section.scopes))
        address = prepare_grant_uri(
            metadata.authorization_endpoint,
            client.section.client_id,
            "code",
            redirect_uri=flow.redirect_uri,
            scope=" ".join(scopes),
            state=flow.state,
            nonce=flow.nonce,
            code_challenge=create_s256_code_challenge(flow.verifier),
            code_challenge_method="S256",
        )
        return BegunSignIn(address, self._sealer.seal(flow))

    async def complete(
        self,
        *,
        code: str | None,
        state: str,
        error: str | None,
        issuer: str | None,
        cookie: str | None,
        host: str,
    ) -> NewSession:
        """Finish what a browser began, and open a session for whoever signed in.

        Raises:
            KagedError: `sign_in_disabled`, `sign_in_unavailable`, `sign_in_refused`,
                `sign_in_not_allowed`.
        """
        client = self._client()
        flow = self._sealer.open(cookie, state, host)
        if flow is None:
            raise SignInRefused(
                "This browser did not begin this sign-in, or it is over.",
                fix="begin again at /api/v1/auth/login",
            )
        if issuer is not None and issuer != client.section.issuer:
            raise SignInRefused("Another provider answered.", fix="begin again")
        if error is not None or not code:
            why = "You did not agree at the provider" if error == "access_denied" else "It failed"
            raise SignInRefused(f"{why}; nobody is signed in.", fix="begin again")
        claims = await self._exchanged(client, flow, code)
        signed_in = admit(client.section, self._operator_id, claims)
        now_ms = self._clock.now_ms()
        lifetime_s = client.section.session_hours * 3600
        value = secrets.token_urlsafe(TOKEN_BYTES)
        session = claims.get("sid")
        record = SignInRecord(
            _digest(value),
            client.section.issuer,
            str(claims["sub"]),
            session if isinstance(session, str) else None,
            host,
            kept_claims(client.section, claims),
            now_ms,
            now_ms + lifetime_s * 1000,
        )
        await self._store.sign_ins.add(record)
        return NewSession(
            value, signed_in, flow.return_to, record.issuer, record.expires_at_ms, lifetime_s
        )

    async def by_cookie(self, value: str, host: str) -> SignedIn | None:
        """Return whose browser this is; None when nobody's, or not on this host.

        Raises:
            KagedError: `sign_in_not_allowed`; they are not let in any more.
        """
        section = self.section
        if section is None:
            return None
        record = await self._store.sign_ins.get(_digest(value))
        if record is None or record.host != host or record.issuer != section.issuer:
            return None
        return admit(section, self._operator_id, record.claims)

    async def close(self, value: str) -> bool:
        """End one browser's session; return whether there was one."""
        ended = await self._store.sign_ins.delete(_digest(value))
        self.tell_change()
        return ended

    async def close_all(self) -> int:
        """End every browser's session; return how many."""
        ended = await self._store.sign_ins.delete_all()
        self.tell_change()
        return ended

    @property
    def next_change(self) -> asyncio.Event:
        """Set when somebody may not be let in any more: whoever serves a stream looks again."""
        return self._change

    def tell_change(self) -> None:
        """Let whoever serves a stream look again: a session has ended, or the rules differ."""
        self._change.set()
        self._change = asyncio.Event()

    async def logout_url(self) -> str | None:
        """Return where a browser ends its session at the provider; None when nowhere."""
        section = self.section
        if section is None:
            return None
        try:
            metadata = await self._client().provider.metadata()
        except SignInUnavailable:
            return None
        if metadata.end_session_endpoint is None:
            return None
        end = metadata.end_session_endpoint
        return f"{end}{'&' if '?' in end else '?'}{urlencode({'client_id': section.client_id})}"

    async def end_by(self, logout_token: str) -> int:
        """End the sessions that the provider says are over; return how many.

        Raises:
            KagedError: `sign_in_disabled`, `sign_in_unavailable`, `sign_in_refused`.
        """
        client = self._client()
        order = await client.verifier.logout_token(logout_token)
        if order.token_id in self._logouts:
            raise SignInRefused("This logout token was used before.")
        self._logouts[order.token_id] = None
        if len(self._logouts) > MAX_LOGOUTS:
            self._logouts.popitem(last=False)
        ended = await self._store.sign_ins.delete_of(
            client.section.issuer, subject=order.subject, provider_session=order.provider_session
        )
        self.tell_change()
        return ended

    # -- programs ------------------------------------------------------------------------------

    async def by_token(self, token: str) -> SignedIn:
        """Return whose access token this is.

        Raises:
            TokenRefused: nobody's, or it is for something else.
            KagedError: `sign_in_unavailable`, `sign_in_not_allowed`.
        """
        client = self._client()
        url = client.section.audience or self.require_public_url()
        # Clients that follow the URL standard write an origin with a slash.
        audiences = [url] if urlsplit(url).path not in ("", "/") else [url.rstrip("/"), f"{url}/"]
        try:
            if client.introspection is not None and not is_signed(token):
                claims = await client.introspection.access_token(token, audiences)
            else:
                claims = await client.verifier.access_token(token, audiences)
        except SignInRefused as error:
            raise TokenRefused(error.message, fix=error.fix) from None
        signed_in = admit(client.section, self._operator_id, claims)
        await self._require_not_signed_out(client.section.issuer, token, claims, signed_in)
        return signed_in

    async def end_token(self, token: str) -> None:
        """Let an access token count no more, though its provider would let it count."""
        over = SignOut(SignOutOf.TOKEN, _digest(token))
        await self._store.sign_ins.sign_out(self.require_section().issuer, over)
        self.tell_change()

    async def end_person(self, person_id: str) -> int:
        """End the sessions of a person, and every token given to them before; return how many.

        Raises:
            KagedError: `sign_in_disabled`.
        """
        section = self.require_section()
        theirs: list[str] = []
        for record in await self._store.sign_ins.all_of(section.issuer):
            with contextlib.suppress(SignInNotAllowed):  # who may not come in needs no sign-out
                found = admit(section, self._operator_id, record.claims)
                if found.facts.person_id == person_id:
                    theirs.append(record.digest)
        over = SignOut(SignOutOf.PERSON, person_id)
        ended = await self._store.sign_ins.sign_out(section.issuer, over, theirs)
        self.tell_change()
        return ended

    async def _require_not_signed_out(
        self, issuer: str, token: str, claims: JsonObject, signed_in: SignedIn
    ) -> None:
        """Refuse a token that was given before its person signed out, or that was ended itself.

        Raises:
            TokenRefused: that is so, or nobody can tell when it was given.
        """
        over = [
            SignOut(SignOutOf.TOKEN, _digest(token)),
            SignOut(SignOutOf.SUBJECT, str(claims["sub"])),
            SignOut(SignOutOf.PERSON, signed_in.facts.person_id),
        ]
        session = claims.get("sid")
        if isinstance(session, str):
            over.append(SignOut(SignOutOf.SESSION, session))
        over_ms = await self._store.sign_ins.signed_out_at_ms(issuer, *over)
        given = claims.get("iat")
        if over_ms is not None and (not isinstance(given, int) or given * 1000 <= over_ms):
            raise TokenRefused(
                "The token is not accepted: its person signed out since.",
                fix="sign in again to get a new one",
            )

    def admitted_again(self, facts: PersonFacts) -> SignedIn:
        """Return who somebody is by now who signed in before. The provider is not asked.

        Raises:
            KagedError: `sign_in_disabled`, `sign_in_not_allowed`.
        """
        return admit_again(self.require_section(), self._operator_id, facts)

    # -- how it is doing -----------------------------------------------------------------------

    async def look(self) -> None:
        """Ask the provider once, so that the log of a start says what is wrong with it."""
        if self.section is None:
            return
        row = await self.check()
        if row.status is CheckStatus.OK:
            _log.info("sign_in.provider_ready", issuer=self.require_section().issuer)
        else:
            _log.warning("sign_in.provider_unavailable", problem=row.cause, fix=row.fix)

    async def check(self) -> CheckRow:
        """Return doctor's row: whether people can sign in."""
        what = "The provider of OpenID Connect that people sign in with."
        section = self.section
        if section is None:
            return CheckRow("sign-in", CheckStatus.OK, what, "not configured; nobody signs in")
        try:
            client = self._client()
            self.require_public_url()
            await client.provider.keys()
        except KagedError as error:
            return CheckRow("sign-in", CheckStatus.FAIL, what, error.message, error.fix or "")
        return CheckRow("sign-in", CheckStatus.OK, what, f"{section.issuer} answers")

    # -- own -----------------------------------------------------------------------------------

    @property
    def _operator_id(self) -> str:
        return self._settings().daemon.value.auth.operator

    def _client(self) -> _Client:
        section = self.require_section()
        secret = None
        if section.client_secret is not None:
            found = self._settings().local.value.secrets.get(section.client_secret)
            if found is None:
                raise SignInUnavailable(
                    f"Nobody can sign in now: [secrets] of local.toml has no "
                    f"{section.client_secret}.",
                    fix=f'add {section.client_secret} = "…" to [secrets] of local.toml',
                )
            secret = found.reveal()
        known = self._known
        if known is None or known.section != section or known.secret != secret:
            ca_file = None if section.ca_file is None else str(section.ca_file)
            provider = OpenIdProvider(section.issuer, self._clock, ca_file)
            verifier = TokenVerifier(provider, section.client_id, self._clock)
            introspection = None
            if section.introspection_seconds is not None:
                introspection = TokenIntrospection(
                    self._introspect, section.issuer, section.introspection_seconds, self._clock
                )
            self._known = known = _Client(section, secret, provider, verifier, introspection)
        return known

    async def _introspect(self, form: Mapping[str, str]) -> tuple[int, JsonObject]:
        client = self._client()
        metadata = await client.provider.metadata()
        if metadata.introspection_endpoint is None:
            raise SignInUnavailable(
                "Nobody can sign in now: the provider has no introspection endpoint.",
                fix="take introspection_seconds out of [auth.oidc]",
            )
        return await self._post_as_client(client, metadata.introspection_endpoint, form)

    async def _post_as_client(
        self, client: _Client, url: str, form: Mapping[str, str]
    ) -> tuple[int, JsonObject]:
        """Send a form to the provider as the client that this daemon is there."""
        in_form = (await client.provider.metadata()).secret_in_form
        if client.secret is not None and not in_form:
            # RFC 6749, 2.3.1: both are encoded as in a form before they become Basic.
            auth = (quote(client.section.client_id, safe=""), quote(client.secret, safe=""))
            return await client.provider.post(url, form, auth)
        own = {"client_id": client.section.client_id}
        if client.secret is not None:
            own["client_secret"] = client.secret
        return await client.provider.post(url, {**form, **own})

    async def _exchanged(self, client: _Client, flow: SignInFlow, code: str) -> JsonObject:
        """Trade the code for an ID token; return its claims."""
        metadata = await client.provider.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.redirect_uri,
            "code_verifier": flow.verifier,
        }
        status, body = await self._post_as_client(client, metadata.token_endpoint, form)
        token, access = body.get("id_token"), body.get("access_token")
        if status >= 500:
            raise SignInUnavailable(
                f"Nobody can sign in now: the provider answers with status {status}.",
                fix="try again later",
            )
        if status != 200 or not isinstance(token, str):
            wrong_client = body.get("error") in ("invalid_client", "unauthorized_client")
            raise SignInRefused(
                "The provider does not accept the client of this daemon."
                if wrong_client
                else "The provider does not accept this sign-in.",
                fix="check client_id and client_secret in [auth.oidc]"
                if wrong_client
                else "begin again",
            )
        access = access if isinstance(access, str) else None
        return await client.verifier.id_token(token, nonce=flow.nonce, access_token=access)


def _resource(section: OidcSection, url: str) -> str:
    """Return what clients ask for a token for; a name that is no URL stays with the provider."""
    named = section.audience or ""
    return named if named.startswith("https://") else url


def _digest(value: str) -> str:
    return digest_secret(value).hex()
