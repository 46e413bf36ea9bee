"""`CalDavClient`: the few questions of CalDAV that a calendar needs, asked of one server.

Answers come from a server that the operator chose and that anybody may have put events on: they
are bounded, parsed without entities, and a path in them counts only below the server's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit
from xml.etree import ElementTree as ET

from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    account_refused,
)
from kaged.services.http_exchange import HttpAnswer, HttpExchange

ANSWER_LIMIT_BYTES: Final = 8 * 1024 * 1024
CALENDARS_LIMIT: Final = 200
OBJECTS_LIMIT: Final = 2000
_DAV: Final = "{DAV:}"
_CAL: Final = "{urn:ietf:params:xml:ns:caldav}"
_XML: Final = '<?xml version="1.0" encoding="utf-8"?>'
_NAMESPACES: Final = 'xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav"'


@dataclass(frozen=True, slots=True)
class Calendar:
    """One calendar: its path on the server, and its name for people."""

    path: str
    name: str
    writable: bool = True


@dataclass(frozen=True, slots=True)
class CalendarObject:
    """One resource with an event in it; `etag` is its version."""

    path: str
    etag: str
    text: str


class CalDavClient:
    """Speaks with one server as one person, whose headers `http` sends along."""

    def __init__(self, base_url: str, http: HttpExchange) -> None:
        self._base_url = base_url if base_url.endswith("/") else f"{base_url}/"
        self._http = http

    # -- finding -----------------------------------------------------------------------------------

    async def calendars(self) -> list[Calendar]:
        """Return the person's calendars that can hold events."""
        home = await self._home()
        body = (
            f"{_XML}<D:propfind {_NAMESPACES}><D:prop><D:resourcetype/><D:displayname/>"
            "<C:supported-calendar-component-set/><D:current-user-privilege-set/>"
            "</D:prop></D:propfind>"
        )
        found: list[Calendar] = []
        for path, props in _responses(await self._xml("PROPFIND", home, body, depth="1")):
            kinds = props.find(f"{_DAV}resourcetype")
            if kinds is None or kinds.find(f"{_CAL}calendar") is None:
                continue
            components = props.find(f"{_CAL}supported-calendar-component-set")
            names = {one.get("name") for one in components} if components is not None else set()
            if names and "VEVENT" not in names:
                continue
            shown = (props.findtext(f"{_DAV}displayname") or "").strip()
            own = self._own(path)
            found.append(Calendar(own, shown or _last(own), _may_write(props)))
        return found[:CALENDARS_LIMIT]

    async def events(self, calendar: str, start: str, end: str) -> list[CalendarObject]:
        """Return the resources with events between two times, written as CalDAV writes them.

        Recurring events come as the occurrences in that time.
        """
        body = (
            f"{_XML}<C:calendar-query {_NAMESPACES}><D:prop><D:getetag/><C:calendar-data>"
            f'<C:expand start="{start}" end="{end}"/></C:calendar-data></D:prop>'
            '<C:filter><C:comp-filter name="VCALENDAR"><C:comp-filter name="VEVENT">'
            f'<C:time-range start="{start}" end="{end}"/></C:comp-filter></C:comp-filter>'
            "</C:filter></C:calendar-query>"
        )
        answer = await self._xml("REPORT", self._own(calendar), body, depth="1")
        found: list[CalendarObject] = []
        for path, props in _responses(answer):
            text = props.findtext(f"{_CAL}calendar-data")
            if text:
                etag = props.findtext(f"{_DAV}getetag") or ""
                found.append(CalendarObject(self._own(path), etag, text))
        return found[:OBJECTS_LIMIT]

    # -- single events -----------------------------------------------------------------------------

    async def get(self, path: str) -> CalendarObject | None:
        """Return one resource, or None when it is gone."""
        own = self._own(path)
        answer = await self._ask("GET", own, expected=(200, 404, 410))
        if answer.status != 200:
            return None
        return CalendarObject(own, answer.headers.get("etag", ""), _text(answer))

    async def create(self, calendar: str, name: str, text: str) -> str:
        """Put a new resource into a calendar and return its path; never overwrites one."""
        path = f"{self._own(calendar).rstrip('/')}/{quote(name, safe='')}"
        headers = {"If-None-Match": "*", "Content-Type": "text/calendar; charset=utf-8"}
        answer = await self._ask(
            "PUT", path, text, headers, expected=(200, 201, 204, 404, 409, 412)
        )
        if answer.status == 412:
            return path  # it is there already: the same call came twice
        if answer.status >= 400:
            raise CapabilityInvalidInput("the calendar does not accept this event")
        return path

    async def replace(self, found: CalendarObject, text: str) -> None:
        """Overwrite a resource, unless somebody has changed it since."""
        headers = {"Content-Type": "text/calendar; charset=utf-8"}
        if found.etag:
            headers["If-Match"] = found.etag
        answer = await self._ask(
            "PUT", found.path, text, headers, expected=(200, 201, 204, 409, 412)
        )
        if answer.status == 412:
            raise CapabilityInvalidInput("the event was changed meanwhile; read it again")
        if answer.status >= 400:
            raise CapabilityInvalidInput("the calendar does not accept this change")

    async def delete(self, path: str, etag: str | None) -> bool:
        """Remove a resource; False when it was gone."""
        headers = {"If-Match": etag} if etag else {}
        answer = await self._ask(
            "DELETE", self._own(path), "", headers, expected=(200, 204, 404, 410, 412)
        )
        if answer.status == 412:
            raise CapabilityInvalidInput("the event was changed meanwhile; read it again")
        return answer.status in {200, 204}

    # -- own -------------------------------------------------------------------------------------

    async def _home(self) -> str:
        """Find where the person's calendars are, the way clients do."""
        body = (
            f"{_XML}<D:propfind {_NAMESPACES}><D:prop><D:current-user-principal/>"
            "<C:calendar-home-set/></D:prop></D:propfind>"
        )
        here = urlsplit(self._base_url).path or "/"
        for path in (here, None):
            answer = _responses(await self._xml("PROPFIND", path or here, body, depth="0"))
            for _, props in answer:
                home = props.findtext(f"{_CAL}calendar-home-set/{_DAV}href")
                if home:
                    return self._own(home)
                principal = props.findtext(f"{_DAV}current-user-principal/{_DAV}href")
                if principal and path is not None:
                    here = self._own(principal)
        return self._own(here)  # an operator who names the home itself

    async def _xml(self, method: str, path: str, body: str, *, depth: str) -> ET.Element:
        headers = {"Depth": depth, "Content-Type": "application/xml; charset=utf-8"}
        answer = await self._ask(method, path, body, headers, expected=(207, 404))
        if answer.status != 207:
            raise CapabilityInvalidInput("there is no such calendar for this account")
        text = _text(answer)
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise CapabilityBackendUnavailable("the calendar server's answer is not plain XML")
        try:
            return ET.fromstring(text)  # noqa: S314 - no entities: refused above
        except ET.ParseError:
            raise CapabilityBackendUnavailable("the calendar server's answer is no XML") from None

    async def _ask(
        self,
        method: str,
        path: str,
        body: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        expected: tuple[int, ...],
    ) -> HttpAnswer:
        answer = await self._http.ask(
            method,
            urljoin(self._base_url, path),
            content=body.encode("utf-8") if body else None,
            headers=headers,
        )
        if answer.status == 401:
            raise account_refused("the calendar server does not accept this login")
        if answer.status == 403:
            raise CapabilityError(
                "the calendar server does not allow this", code="capability_access_denied"
            )
        if answer.status not in expected:
            raise CapabilityBackendUnavailable("the calendar server refused the request")
        return answer

    def _own(self, place: str) -> str:
        """Return the path of a place on this server.

        Raises:
            CapabilityInvalidInput: it is on another server, where these credentials do not go.
        """
        own, there = urlsplit(self._base_url), urlsplit(urljoin(self._base_url, place))
        # Before the join, too: it resolves what leads upwards.
        parts = f"{unquote(urlsplit(place).path)}/{unquote(there.path)}".split("/")
        if (there.scheme, there.netloc) != (own.scheme, own.netloc) or ".." in parts:
            raise CapabilityInvalidInput("that is not a place on this calendar server")
        if not there.path.isascii() or not there.path.isprintable():
            return quote(unquote(there.path), safe="/")
        return there.path


def _text(answer: HttpAnswer) -> str:
    return answer.body.decode("utf-8", "replace")


def _responses(answer: ET.Element) -> list[tuple[str, ET.Element]]:
    """Return each resource of an answer with the properties that were found."""
    found: list[tuple[str, ET.Element]] = []
    for response in answer.iterfind(f"{_DAV}response"):
        path = (response.findtext(f"{_DAV}href") or "").strip()
        for stat in response.iterfind(f"{_DAV}propstat"):
            props = stat.find(f"{_DAV}prop")
            if path and props is not None and " 200" in (stat.findtext(f"{_DAV}status") or ""):
                found.append((path, props))
    return found


def _may_write(props: ET.Element) -> bool:
    granted = props.find(f"{_DAV}current-user-privilege-set")
    if granted is None:
        return True
    words = {one.tag.removeprefix(_DAV) for one in granted.iterfind(f"{_DAV}privilege/*")}
    return bool(words & {"all", "write", "write-content", "bind"})


def _last(path: str) -> str:
    return unquote(path.rstrip("/").rpartition("/")[2]) or "calendar"
