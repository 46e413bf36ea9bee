"""`HttpRest`: the described operations of an HTTP API as a capability."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services import contract
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityRateLimited,
    account_refused,
)
from kaged.services.http_exchange import AnswerTooLarge, HttpAnswer, HttpExchange
from kaged.services.providers.linking import LinkedProvider
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.rest_auth import BEARER_OF_OAUTH, RestAuth, RestCredentials
from kaged.services.providers.rest_description import (
    ParameterLocation,
    RestDescription,
    RestOperation,
)

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport

ANSWER_LIMIT_BYTES: Final = 900 * 1024  # with room for what is around it in the host's limit
_TEXT_LIMIT_CHARS: Final = 200_000
_NEXT: Final = re.compile(r'<([^<>]+)>;[^,]*\brel="next"')


@dataclass(frozen=True, slots=True)
class RestSettings:
    """One HTTP API, as the operator describes it. `check_path` is asked when a token is linked."""

    namespace: str
    name: str
    api: RestDescription
    credentials: RestCredentials = BEARER_OF_OAUTH
    sensitive: bool = True
    check_path: str | None = None
    timeout_s: float = 30.0
    ca_file: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def auth(self) -> RestAuth:
        """How the API knows whose call it is."""
        return self.credentials.auth


class HttpRest(LinkedProvider):
    """The provider of `<namespace>.<name>`."""

    def __init__(
        self,
        settings: RestSettings,
        *,
        page: LinkPage,
        oauth: OAuthClient | None = None,
        transport: AsyncBaseTransport | None = None,
    ) -> None:
        if (settings.auth is RestAuth.OAUTH) != (oauth is not None):
            raise CapabilityInvalidInput("OAuth needs its settings, and only OAuth does")
        how = "" if settings.auth is RestAuth.BASIC else " with a token as password"
        title = f"Link {settings.api.description}{how}"
        super().__init__(settings.namespace, page=page, page_title=title, oauth=oauth)
        self.settings = settings
        self._transport = transport

    async def definitions(self) -> list[contract.CapabilityDefinition]:
        """Return the one capability with the described operations."""
        settings = self.settings
        operations = {
            name: contract.CapabilityOperation(
                name,
                one.description,
                requires_auth=settings.auth is not RestAuth.NONE,
                mutating=one.mutating,
                input_schema=one.input_schema(),
                output_schema={
                    "type": "object",
                    "properties": {"status": {"type": "integer"}, "next_page": {"type": "string"}},
                    "required": ["status", "data"],
                },
            )
            for name, one in settings.api.operations.items()
        }
        return [
            contract.CapabilityDefinition(
                id=f"{settings.namespace}.{settings.name}",
                description=settings.api.description,
                sensitive=settings.sensitive,
                operations=operations,
            )
        ]

    async def auth_begin(self, call: contract.AuthBeginCall) -> contract.CapabilityAuthBeginResult:
        """Start linking an account, where the API knows accounts."""
        self._require_accounts()
        return await super().auth_begin(call)

    async def auth_complete(
        self, call: contract.AuthCompleteCall
    ) -> contract.CapabilityAuthCompleteResult:
        """Finish linking an account, where the API knows accounts."""
        self._require_accounts()
        return await super().auth_complete(call)

    async def invoke(self, call: contract.InvokeCall) -> JsonObject:
        """Make one described call."""
        operation = self.settings.api.operations.get(call.operation)
        if operation is None:
            raise CapabilityInvalidInput(f"there is no operation {call.operation!r}")
        url, query, body = _request(self.settings.api.base_url, operation, call.input_data)
        key = call.idempotency_key
        if call.credentials is None:
            return _output(await self._ask(operation.method, url, None, query, body, key))
        held = await self._credential(call.credentials)
        answer = await self._ask(operation.method, url, held, query, body, key)
        if answer.status == 401 and self._oauth is not None:
            # Ended before its time, perhaps: once with a fresh one. It was refused, so it did
            # nothing, and a second try changes nothing twice.
            held = await self._oauth.renewed(call.credentials, held)
            answer = await self._ask(operation.method, url, held, query, body, key)
        return _output(answer)

    # -- own -------------------------------------------------------------------------------------

    def _require_accounts(self) -> None:
        if self.settings.auth is RestAuth.NONE:
            raise CapabilityInvalidInput("this capability needs no account")

    async def _try_login(self, user: str, password: str) -> None:
        if self.settings.check_path is None:
            return
        url = self.settings.api.base_url + self.settings.check_path
        held: JsonObject = {"username": user, "password": password}
        answer = await self._ask("GET", url, held, [], None, None)
        if answer.status >= 400:
            raise account_refused("The service does not accept this token.")

    async def _check(self, held: JsonObject) -> bool:
        if self.settings.check_path is None:
            return False
        url = self.settings.api.base_url + self.settings.check_path
        _output(await self._ask("GET", url, held, [], None, None))
        return True

    async def _reach(self) -> None:
        await self._ask("GET", self.settings.api.base_url, None, [], None, None)

    async def _ask(
        self,
        method: str,
        url: str,
        held: JsonObject | None,
        query: list[tuple[str, str]],
        body: JsonValue,
        key: str | None,
    ) -> HttpAnswer:
        headers = {"Accept": "application/json", "User-Agent": "kaged", **self.settings.headers}
        if held is not None:
            shown, asked = self.settings.credentials.parts(held)
            headers, query = {**headers, **shown}, [*query, *asked]
        if key is not None and method != "GET":
            headers["Idempotency-Key"] = key
        options: dict[str, Any] = {} if body is None else {"json": body}
        async with HttpExchange(
            "the service",
            ANSWER_LIMIT_BYTES,
            timeout_s=self.settings.timeout_s,
            transport=self._transport,
            ca_file=self.settings.ca_file,
        ) as http:
            try:
                if query:  # without any, those of the address itself stay as they are
                    options["params"] = tuple(query)
                return await http.ask(method, url, headers=headers, **options)
            except AnswerTooLarge:
                raise CapabilityInvalidInput(
                    "the service's answer is too long; ask for less at a time"
                ) from None


def _request(
    base_url: str, operation: RestOperation, given: JsonObject
) -> tuple[str, list[tuple[str, str]], JsonValue]:
    path = operation.path
    query: list[tuple[str, str]] = []
    for one in operation.parameters:
        if one.name not in given:
            continue
        value = given[one.name]
        if one.place is ParameterLocation.PATH:
            text = _plain(value)
            if text in {"", ".", ".."}:
                raise CapabilityInvalidInput(f"{one.name} cannot be {text!r} in a path")
            path = path.replace(f"{{{one.name}}}", quote(text, safe=""))
        elif isinstance(value, list):
            query += [(one.name, _plain(item)) for item in value]
        elif value is not None:
            query.append((one.name, _plain(value)))
    return base_url + path, query, given.get("body") if operation.body is not None else None


def _plain(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise CapabilityInvalidInput("a parameter is a text, a number or yes and no")


def _data(body: bytes) -> JsonValue:
    import msgspec  # noqa: PLC0415 - only where an answer is read

    if not body:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")[:_TEXT_LIMIT_CHARS]


def _output(answer: HttpAnswer) -> JsonObject:
    status = answer.status
    if status == 401:
        raise account_refused("the service no longer accepts the linked account")
    if status == 403:
        raise CapabilityError(
            f"the service does not allow this{_said(_data(answer.body))}",
            code="capability_access_denied",
        )
    if status == 429:
        wait = answer.headers.get("retry-after", "")
        seconds = min(int(wait), 3600) if wait.isdecimal() else 60
        raise CapabilityRateLimited(
            "the service limits the rate of calls", retry_after_seconds=max(seconds, 1)
        )
    if status >= 500 or 300 <= status < 400:
        raise CapabilityBackendUnavailable(f"the service answered {status}")
    data = _data(answer.body)
    if status >= 400:
        raise CapabilityInvalidInput(f"the service answered {status}{_said(data)}")
    output: JsonObject = {"status": status, "data": data}
    following = _NEXT.search(answer.headers.get("link", ""))
    if following is not None:
        output["next_page"] = following[1].partition("?")[2][:1000]
    return output


def _said(data: JsonValue) -> str:
    """Return the service's own message about a refusal, if it has one.

    As a whole: it is cut where the secrets are known that it may repeat.
    """
    message = data.get("message") if isinstance(data, dict) else None
    if not isinstance(message, str) or not message.isprintable():
        return ""
    return f": {message}"
