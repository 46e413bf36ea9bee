"""`CalDavCalendar`: the calendars of a CalDAV server as a capability."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.contract import CapabilityDefinition, InvokeCall
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.http_exchange import HttpExchange
from kaged.services.providers import events
from kaged.services.providers.caldav_client import ANSWER_LIMIT_BYTES, CalDavClient
from kaged.services.providers.linking import LinkedProvider
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.operation_schemas import calendar_definition

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport

WINDOW_DAYS: Final = 30
WINDOW_LIMIT: Final = timedelta(days=2 * 366)


@dataclass(frozen=True, slots=True)
class CalendarSettings:
    """One calendar service, as the operator describes it."""

    namespace: str
    url: str
    timeout_s: float = 30.0
    ca_file: str | None = None


class CalDavCalendar(LinkedProvider):
    """The provider of `<namespace>.calendar`."""

    def __init__(
        self,
        settings: CalendarSettings,
        *,
        clock: Clock,
        page: LinkPage,
        oauth: OAuthClient | None = None,
        transport: AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(settings.namespace, page=page, page_title="Link a calendar", oauth=oauth)
        self._settings = settings
        self._clock = clock
        self._transport = transport

    async def definitions(self) -> list[CapabilityDefinition]:
        """Return the one capability."""
        return [calendar_definition(self.namespace)]

    async def invoke(self, call: InvokeCall) -> JsonObject:
        """Run one operation."""
        assert call.credentials is not None, "every operation needs an account"
        given = call.input_data
        held = await self._credential(call.credentials)
        async with self._client(self._authorization(held)) as client:
            match call.operation:
                case "calendars":
                    rows: list[JsonValue] = [
                        {"calendar": one.path, "name": one.name, "writable": one.writable}
                        for one in await client.calendars()
                    ]
                    return {"calendars": rows}
                case "list":
                    return await self._list(client, given, None)
                case "search":
                    return await self._list(client, given, str(given["text"]))
                case "create":
                    return await self._create(client, call)
                case "update":
                    return await self._update(client, given)
                case "delete":
                    version = given.get("version")
                    etag = version if isinstance(version, str) else None
                    return {"deleted": await client.delete(str(given["event_id"]), etag)}
                case _:
                    raise CapabilityInvalidInput(f"there is no operation {call.operation!r}")

    # -- operations ------------------------------------------------------------------------------

    async def _list(self, client: CalDavClient, given: JsonObject, text: str | None) -> JsonObject:
        start, end = self._window(given)
        limit = cast("int", given.get("limit", 50))
        found: list[JsonObject] = []
        if "calendar" in given:
            calendars = [str(given["calendar"])]
        else:
            calendars = [one.path for one in await client.calendars()]
        for calendar in calendars:
            for one in await client.events(
                calendar, events.caldav_moment(start), events.caldav_moment(end)
            ):
                found += events.describe_events(one.path, one.etag, one.text)
        if text is not None:
            found = [one for one in found if events.matches(one, text)]
        found.sort(key=lambda one: (str(one["start"]), str(one["title"])))
        listed: list[JsonValue] = [*found[:limit]]
        return {"events": listed, "total": len(found)}

    async def _create(self, client: CalDavClient, call: InvokeCall) -> JsonObject:
        given = call.input_data
        name = events.new_event_name(call.idempotency_key, call.context.user_id)
        text = events.write_event(name, given, now_ms=self._clock.now_ms())
        calendar = await self._target(client, given)
        path = await client.create(calendar, f"{name}.ics", text)
        return {"event_id": path, "calendar": calendar}

    async def _update(self, client: CalDavClient, given: JsonObject) -> JsonObject:
        found = await client.get(str(given["event_id"]))
        if found is None:
            raise CapabilityInvalidInput("there is no such event")
        version = given.get("version")
        if isinstance(version, str) and version and version != found.etag:
            raise CapabilityInvalidInput("the event was changed meanwhile; read it again")
        await client.replace(
            found, events.change_event(found.text, given, now_ms=self._clock.now_ms())
        )
        return {"event_id": found.path, "updated": True}

    # -- own -------------------------------------------------------------------------------------

    def _window(self, given: JsonObject) -> tuple[datetime, datetime]:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC)
        start = events.parse_moment("start", str(given["start"])) if "start" in given else now
        end = (
            events.parse_moment("end", str(given["end"]))
            if "end" in given
            else start + timedelta(days=WINDOW_DAYS)
        )
        if not timedelta(0) < end - start <= WINDOW_LIMIT:
            raise CapabilityInvalidInput("end must be after start, at most two years later")
        return start, end

    async def _target(self, client: CalDavClient, given: JsonObject) -> str:
        if "calendar" in given:
            return str(given["calendar"])
        writable = [one for one in await client.calendars() if one.writable]
        if len(writable) == 1:
            return writable[0].path
        names = ", ".join(one.path for one in writable[:20])
        raise CapabilityInvalidInput(f"name the calendar: {names or 'none can be written to'}")

    @asynccontextmanager
    async def _client(self, authorization: str) -> AsyncGenerator[CalDavClient]:
        async with self._exchange({"Authorization": authorization}) as http:
            yield CalDavClient(self._settings.url, http)

    def _exchange(self, headers: dict[str, str]) -> HttpExchange:
        return HttpExchange(
            "the calendar server",
            ANSWER_LIMIT_BYTES,
            timeout_s=self._settings.timeout_s,
            transport=self._transport,
            headers=headers,
            ca_file=self._settings.ca_file,
        )

    def _authorization(self, held: JsonObject) -> str:
        if self._oauth is not None:
            return f"Bearer {held['access_token']}"
        return _basic(str(held.get("username")), str(held.get("password")))

    async def _try_login(self, user: str, password: str) -> None:
        async with self._client(_basic(user, password)) as client:
            await client.calendars()

    async def _check(self, held: JsonObject) -> bool:
        async with self._client(self._authorization(held)) as client:
            await client.calendars()
        return True

    async def _reach(self) -> None:
        async with self._exchange({}) as http:
            await http.ask("OPTIONS", self._settings.url)


def _basic(user: str, password: str) -> str:
    if ":" in user:
        raise CapabilityInvalidInput("a user name has no colon")
    joined = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    return f"Basic {joined}"
