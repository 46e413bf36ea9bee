"""`OpenIdProvider`: the documents and keys of one provider, and questions to its endpoints.

Nothing that a caller of ours sends makes the daemon ask the provider more often than `PAUSE_S`
allows: a token with an unknown key is looked up once, and then refused until the pause is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kaged.base import Clock, JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.oidc import parse_secure_url
from kaged.serve.signin.errors import SignInUnavailable

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
ANSWER_LIMIT_BYTES: Final = 512 * 1024
MAX_KEYS: Final = 100
MAX_URL_CHARS: Final = 2000
PAUSE_S: Final = 5.0
"""How long after a question for a document the next one is asked."""
METADATA_FRESH_S: Final = 3600.0
KEYS_FRESH_S: Final = 300.0
"""After how long a key that the provider has withdrawn is refused, at the latest."""
STALE_S: Final = 3600.0
"""How long documents are used beyond that while the provider cannot be reached."""

WELL_KNOWN: Final = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """What the provider says about itself, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str | None
    introspection_endpoint: str | None
    secret_in_form: bool


class _Document(Generic[T]):
    """A document that is fetched when it is needed, by one caller at a time and not too often."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], clock: Clock, fresh_s: float) -> None:
        self._fetch = fetch
        self._clock = clock
        self._fresh_s = fresh_s
        self._busy = asyncio.Lock()
        self._value: T | None = None
        self._fetched_s = float("-inf")
        self._asked_s = float("-inf")
        self._fault: SignInUnavailable | None = None

    async def get(self, *, newer: bool = False) -> T:
        """Return the document; `newer` asks for one that was fetched later than what is known.

        Raises:
            SignInUnavailable: there is none that may be used.
        """
        seen_s = self._asked_s
        async with self._busy:
            waited = self._asked_s != seen_s
            old_s = self._clock.monotonic_s() - self._fetched_s
            if self._value is not None and old_s < self._fresh_s and (waited or not newer):
                return self._value
            if self._clock.monotonic_s() - self._asked_s >= PAUSE_S:
                await self._ask()
            usable = self._clock.monotonic_s() - self._fetched_s < self._fresh_s + STALE_S
            if self._value is not None and usable:
                return self._value
            fault = self._fault or SignInUnavailable(
                "Nobody can sign in now: the provider was not asked to the end.",
                fix="try again in a few seconds",
            )
            raise SignInUnavailable(fault.message, fix=fault.fix)

    async def _ask(self) -> None:
        try:
            self._value = await self._fetch()
            self._fetched_s, self._fault = self._clock.monotonic_s(), None
        except SignInUnavailable as fault:
            self._fault = fault
        finally:
            self._asked_s = self._clock.monotonic_s()


class OpenIdProvider:
    """One provider, by its issuer URL."""

    def __init__(self, issuer: str, clock: Clock, ca_file: str | None) -> None:
        self.issuer = issuer
        self._ca_file = ca_file
        self._metadata = _Document(self._fetch_metadata, clock, METADATA_FRESH_S)
        self._keys = _Document(self._fetch_keys, clock, KEYS_FRESH_S)

    async def metadata(self) -> ProviderMetadata:
        """Return where its endpoints are. Raises SignInUnavailable."""
        return await self._metadata.get()

    async def keys(self, *, newer: bool = False) -> KeySet:
        """Return the keys that it signs with. Raises SignInUnavailable."""
        return await self._keys.get(newer=newer)

    async def post(
        self, url: str, form: Mapping[str, str], auth: tuple[str, str] | None = None
    ) -> tuple[int, JsonObject]:
        """Send a form to one of its endpoints. Raises SignInUnavailable."""
        return await self._ask("POST", url, data=dict(form), auth=auth)

    async def _fetch_metadata(self) -> ProviderMetadata:
        url = self.issuer.rstrip("/") + WELL_KNOWN
        status, found = await self._ask("GET", url)
        if status != 200 or not found:
            raise self._wrong(f"{url} answers with status {status} and no document of a provider")
        if found.get("issuer") != self.issuer:
            raise self._wrong(f"{url} names {_shown(found.get('issuer'))} as its issuer")
        methods = found.get("token_endpoint_auth_methods_supported")
        return ProviderMetadata(
            self.issuer,
            self._endpoint(found, "authorization_endpoint"),
            self._endpoint(found, "token_endpoint"),
            self._endpoint(found, "jwks_uri"),
            self._optional_endpoint(found, "end_session_endpoint"),
            self._optional_endpoint(found, "introspection_endpoint"),
            isinstance(methods, list) and "client_secret_basic" not in methods,
        )

    async def _fetch_keys(self) -> KeySet:
        # Heavy, and of no use to a daemon where nobody signs in.
        from joserfc.errors import JoseError  # noqa: PLC0415 - see above
        from joserfc.jwk import KeySet  # noqa: PLC0415 - see above

        url = (await self.metadata()).jwks_uri
        status, found = await self._ask("GET", url)
        listed = found.get("keys")
        if status != 200 or not isinstance(listed, list) or len(listed) > MAX_KEYS:
            raise self._wrong(f"{url} answers with status {status} and no set of keys")
        # Only keys for signatures count, and never a symmetric one: that would be known to all.
        wanted: list[Any] = [
            key
            for key in listed
            if isinstance(key, dict)
            and key.get("kty") in ("RSA", "EC", "OKP")
            and key.get("use", "sig") == "sig"
            and isinstance(key.get("kid", ""), str)
        ]
        try:
            return KeySet.import_key_set({"keys": wanted})
        except (JoseError, ValueError, TypeError, KeyError):
            raise self._wrong(f"{url} has no usable key") from None

    async def _ask(self, method: str, url: str, **request: Any) -> tuple[int, JsonObject]:
        """Ask for a JSON object; returns the status with it, an empty one for anything else."""
        import msgspec  # noqa: PLC0415 - only where an answer is read

        from kaged.services.errors import CapabilityError  # noqa: PLC0415 - as above
        from kaged.services.http_exchange import HttpExchange  # noqa: PLC0415 - as above

        try:
            async with HttpExchange(
                "the provider",
                ANSWER_LIMIT_BYTES,
                timeout_s=TIMEOUT_S,
                headers={"Accept": "application/json"},
                ca_file=self._ca_file,
            ) as http:
                answer = await http.ask(method, url, **request)
        except (CapabilityError, OSError) as error:
            said = error.message if isinstance(error, CapabilityError) else "ca_file is not usable"
            raise SignInUnavailable(
                f"Nobody can sign in now: {said} ({url}).",
                fix="check [auth.oidc] issuer and ca_file with `kaged doctor`, and whether the "
                "provider runs",
            ) from None
        try:
            body: JsonValue = msgspec.json.decode(answer.body) if answer.body else {}
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = {}
        return answer.status, body if isinstance(body, dict) else {}

    def _optional_endpoint(self, found: JsonObject, name: str) -> str | None:
        return self._endpoint(found, name) if name in found else None

    def _endpoint(self, found: JsonObject, name: str) -> str:
        value = found.get(name)
        if not isinstance(value, str) or len(value) > MAX_URL_CHARS:
            raise self._wrong(f"its document has no usable {name}")
        try:
            parse_secure_url(value.partition("?")[0])
        except KagedError:
            raise self._wrong(f"its {name} is not an https URL") from None
        return value

    def _wrong(self, why: str) -> SignInUnavailable:
        return SignInUnavailable(
            f"Nobody can sign in now: {self.issuer} is not usable as a provider; {why}.",
            fix="set [auth.oidc] issuer to exactly what the provider calls itself",
        )


def _shown(value: JsonValue) -> str:
    return repr(value[:200]) if isinstance(value, str) else "nothing"
