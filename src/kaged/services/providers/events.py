"""Events as people say them and as calendars store them: `describe_events`, `write_event`.

`icalendar` reads and writes the format; what is shown has limits, and times always have a zone.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kaged.base import JsonObject, JsonValue
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityInvalidInput

TEXT_LIMIT_CHARS: Final = 20_000
NAME_LIMIT_CHARS: Final = 500
PRODUCT: Final = "-//kaged//calendar//EN"


def parse_moment(name: str, text: str) -> datetime:
    """Read a time with a zone, or a day as its midnight in UTC. Raises CapabilityInvalidInput."""
    try:
        return _utc(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise CapabilityInvalidInput(f"{name} is a time such as 2026-02-24T20:10:00Z") from None


def caldav_moment(moment: datetime) -> str:
    """Write a time as CalDAV wants it."""
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def new_event_name(key: str | None, who: str) -> str:
    """Make the name of a new event; with a key it is the same each time."""
    if key is None:
        return secrets.token_hex(16)
    return hashlib.sha256(f"{who}\0{key}".encode()).hexdigest()[:32]


def describe_events(path: str, etag: str, text: str) -> list[JsonObject]:
    """Return what a list shows of a resource: one entry per event in it.

    Raises:
        CapabilityBackendUnavailable: the resource is no calendar data.
    """
    return [_described(path, etag, one) for one in _read(text).walk("VEVENT")]


def write_event(name: str, given: JsonObject, *, now_ms: int) -> str:
    """Write a new event.

    Raises:
        CapabilityInvalidInput: a time is none, or the end is before the start.
    """
    from icalendar import Calendar, Event  # noqa: PLC0415 - heavy, for daemons with calendars only

    event = Event()
    event.add("uid", name)
    event.add("dtstamp", datetime.fromtimestamp(now_ms / 1000, tz=UTC))
    _fill(event, given)
    calendar = Calendar()
    calendar.add("prodid", PRODUCT)
    calendar.add("version", "2.0")
    calendar.add_component(event)
    calendar.add_missing_timezones()
    return calendar.to_ical().decode("utf-8")


def change_event(text: str, given: JsonObject, *, now_ms: int) -> str:
    """Return a resource with its (first) event changed in what is given."""
    calendar = _read(text)
    events = [one for one in calendar.walk("VEVENT") if "RECURRENCE-ID" not in one]
    if not events:
        raise CapabilityInvalidInput("that resource holds no event that can be changed")
    event = events[0]
    for name in ("dtstamp", "last-modified"):
        event.pop(name, None)
        event.add(name, datetime.fromtimestamp(now_ms / 1000, tz=UTC))
    sequence = event.pop("sequence", 0)
    event.add("sequence", int(sequence) + 1)
    _fill(event, given)
    calendar.add_missing_timezones()
    return calendar.to_ical().decode("utf-8")


def matches(event: JsonObject, text: str) -> bool:
    """Return whether the words of an event hold a text, whatever the case."""
    wanted = text.casefold()
    return any(
        wanted in str(event.get(name) or "").casefold()
        for name in ("title", "description", "location")
    )


def _read(text: str) -> Any:
    from icalendar import Calendar  # noqa: PLC0415 - heavy, for daemons with calendars only

    try:
        return Calendar.from_ical(text)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        raise CapabilityBackendUnavailable("an event on the server cannot be read") from None


def _fill(event: Any, given: JsonObject) -> None:
    for key, name in (("title", "summary"), ("location", "location"), ("description",) * 2):
        if key in given:
            event.pop(name, None)
            event.add(name, str(given[key]))
    zone = _zone(given.get("timezone"))
    for key, name in (("start", "dtstart"), ("end", "dtend")):
        if key in given:
            event.pop(name, None)
            event.add(name, _moment(key, str(given[key]), zone))
            if key == "end":
                event.pop("duration", None)
    start, end = _time(event, "DTSTART"), _time(event, "DTEND")
    if start is None:
        raise CapabilityInvalidInput("an event needs a start")
    if end is not None and type(start) is not type(end):
        raise CapabilityInvalidInput("start and end are both times, or both days")
    if end is not None and _utc(end) < _utc(start):
        raise CapabilityInvalidInput("the end is before the start")


def _moment(name: str, text: str, zone: ZoneInfo | None) -> date | datetime:
    written = text.strip()
    if len(written) == 10:
        try:
            return date.fromisoformat(written)
        except ValueError:
            raise CapabilityInvalidInput(f"{name} is a day such as 2026-02-24") from None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise CapabilityInvalidInput(f"{name} is a time such as 2026-02-24T20:10:00Z") from None
    if moment.tzinfo is None:
        if zone is None:
            raise CapabilityInvalidInput(f"{name} has no zone: add Z, an offset or timezone")
        return moment.replace(tzinfo=zone)
    return moment.astimezone(zone or UTC)


def _zone(value: JsonValue) -> ZoneInfo | None:
    if not isinstance(value, str):
        return None
    try:
        return ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CapabilityInvalidInput("timezone is a name such as Europe/Berlin") from None


def _described(path: str, etag: str, event: Any) -> JsonObject:
    start, end = _time(event, "DTSTART"), _time(event, "DTEND")
    if end is None and start is not None:
        length = event.get("DURATION")
        span = getattr(length, "dt", None)
        whole_day = timedelta(days=0 if isinstance(start, datetime) else 1)
        end = start + (span if isinstance(span, timedelta) else whole_day)
    occurrence = _time(event, "RECURRENCE-ID")
    return {
        "event_id": path,
        "version": etag,
        "title": _text(event, "SUMMARY", NAME_LIMIT_CHARS),
        "start": _shown(start),
        "end": _shown(end),
        "all_day": start is not None and not isinstance(start, datetime),
        "location": _text(event, "LOCATION", NAME_LIMIT_CHARS),
        "description": _text(event, "DESCRIPTION", TEXT_LIMIT_CHARS),
        "status": _text(event, "STATUS", 32).lower(),
        "recurring": "RRULE" in event or occurrence is not None,
    }


def _time(event: Any, name: str) -> date | datetime | None:
    found = getattr(event.get(name), "dt", None)
    return found if isinstance(found, date) else None


def _utc(moment: date | datetime) -> datetime:
    if not isinstance(moment, datetime):
        return datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _shown(moment: date | datetime | None) -> str | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        return moment.isoformat()
    return f"{_utc(moment):%Y-%m-%dT%H:%M:%SZ}"


def _text(event: Any, name: str, limit: int) -> str:
    value = event.get(name)
    return "" if value is None else str(value)[:limit]
