"""Events out of iCalendar text (RFC 5545): single ones, and those that repeat.

Of repetition the rules that calendars of people have are known: DAILY, WEEKLY, MONTHLY and YEARLY
with INTERVAL, COUNT, UNTIL and BYDAY (weekdays, in WEEKLY), with EXDATE and moved occurrences. An
event with another rule is told at its first date and marked, never guessed.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

MAX_OCCURRENCES = 5000
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
KNOWN_PARTS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST"}
FOLD = re.compile(r"\r?\n[ \t]")
DURATION = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


class Occurrence(NamedTuple):
    """One event at one time; `end` is not part of it."""

    start: datetime
    end: datetime
    title: str
    place: str
    all_day: bool
    irregular: bool  # it repeats by a rule that is not known here


class Moment(NamedTuple):
    """A DATE or DATE-TIME."""

    at: datetime
    all_day: bool


def occurrences(text: str, first: datetime, last: datetime) -> list[Occurrence]:
    """Return what happens between two moments; both must have a time zone."""
    zone = first.tzinfo or UTC
    events = list(_events(text))
    moved = {
        (_one(event, "UID"), instead.at)
        for event in events
        if (instead := _moment(event, "RECURRENCE-ID", zone)) is not None
    }
    found: list[Occurrence] = []
    for event in events:
        start = _moment(event, "DTSTART", zone)
        if start is None or _one(event, "STATUS") == "CANCELLED":
            continue
        length = _length(event, start, zone)
        rule = _one(event, "RRULE")
        regular = not rule or _is_known(rule)
        days = _starts(start.at, rule, last, zone) if rule and regular else [start.at]
        skipped = {one.at for one in _moments(event, "EXDATE", zone)}
        own = "RECURRENCE-ID" in event
        for at in days:
            end = at + length
            if at in skipped or (not own and (_one(event, "UID"), at) in moved):
                continue
            if at < last and (end > first or at >= first):
                title = _plain(_one(event, "SUMMARY")) or "(no title)"
                place = _plain(_one(event, "LOCATION"))
                found.append(Occurrence(at, end, title, place, start.all_day, not regular))
    return sorted(found)


def _events(text: str) -> Iterator[dict[str, list[tuple[str, str]]]]:
    """Yield the properties of each VEVENT: name → its parameters and values."""
    event: dict[str, list[tuple[str, str]]] | None = None
    depth = 0
    for line in FOLD.sub("", text).splitlines():
        head, colon, value = _split(line)
        name, _, params = head.partition(";")
        name = name.upper()
        if name == "BEGIN" and event is not None:
            depth += 1  # an alarm
        elif name == "BEGIN" and value.upper() == "VEVENT":
            event = {}
        elif name == "END" and depth:
            depth -= 1
        elif name == "END" and event is not None:
            yield event
            event = None
        elif event is not None and colon and not depth:
            event.setdefault(name, []).append((params, value))


def _split(line: str) -> tuple[str, str, str]:
    """Part a line at the first colon that is not in quotes."""
    quoted = False
    for index, char in enumerate(line):
        if char == '"':
            quoted = not quoted
        elif char == ":" and not quoted:
            return line[:index], ":", line[index + 1 :]
    return line, "", ""


def _one(event: dict[str, list[tuple[str, str]]], name: str) -> str:
    return event[name][0][1].strip() if name in event else ""


def _plain(text: str) -> str:
    words = re.sub(r"\\(.)", lambda one: " " if one[1] in "nN" else one[1], text)
    return " ".join(words.split())[:300]


def _moments(event: dict[str, list[tuple[str, str]]], name: str, zone: tzinfo) -> Iterator[Moment]:
    for params, values in event.get(name, []):
        for value in values.split(","):
            try:
                yield _read(params, value.strip(), zone)
            except (ValueError, KeyError):
                continue


def _moment(event: dict[str, list[tuple[str, str]]], name: str, zone: tzinfo) -> Moment | None:
    return next(_moments(event, name, zone), None)


def _read(params: str, value: str, zone: tzinfo) -> Moment:
    if len(value) == 8:
        day = datetime.strptime(value, "%Y%m%d").replace(tzinfo=zone)
        return Moment(day, True)
    at = datetime.strptime(value.rstrip("Z"), "%Y%m%dT%H%M%S")
    if value.endswith("Z"):
        return Moment(at.replace(tzinfo=UTC), False)
    named = re.search(r'TZID="?([^";]+)', params)
    own: tzinfo = zone
    if named:
        try:
            own = ZoneInfo(named[1])
        except (KeyError, ValueError, OSError):
            own = zone  # a private name; the reader's own zone is the best guess
    return Moment(at.replace(tzinfo=own), False)


def _length(event: dict[str, list[tuple[str, str]]], start: Moment, zone: tzinfo) -> timedelta:
    end = _moment(event, "DTEND", zone)
    if end is not None:
        return max(end.at - start.at, timedelta())
    said = DURATION.fullmatch(_one(event, "DURATION"))
    if said:
        weeks, days, hours, minutes, seconds = (int(one or 0) for one in said.groups())
        return timedelta(weeks * 7 + days, hours * 3600 + minutes * 60 + seconds)
    return timedelta(days=1) if start.all_day else timedelta()


def _parts(rule: str) -> dict[str, str]:
    pairs = (one.partition("=") for one in rule.upper().split(";"))
    return {name: value for name, _, value in pairs if name}


def _is_known(rule: str) -> bool:
    parts = _parts(rule)
    weekly_days = parts.get("FREQ") == "WEEKLY" and all(
        one in WEEKDAYS for one in parts.get("BYDAY", "MO").split(",")
    )
    number = parts.get("INTERVAL", "1") + parts.get("COUNT", "1")
    return (
        parts.get("FREQ") in ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
        and set(parts) <= KNOWN_PARTS
        and ("BYDAY" not in parts or weekly_days)
        and number.isdigit()
    )


def _starts(start: datetime, rule: str, last: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Yield when a repeating event begins; times of day stay, whatever the clocks do."""
    parts = _parts(rule)
    count = int(parts["COUNT"]) if "COUNT" in parts else MAX_OCCURRENCES
    until = _read("", parts["UNTIL"], start.tzinfo or zone) if "UNTIL" in parts else None
    ends = last if until is None else until.at
    if until is not None and until.all_day:
        ends = until.at + timedelta(days=1, microseconds=-1)
    told = 0
    for looked, day in enumerate(_days(start.date(), parts)):
        at = datetime.combine(day, start.timetz())
        if at > ends or at >= last or told >= count or looked > MAX_OCCURRENCES * 4:
            return
        if at >= start:
            told += 1
            yield at


def _days(first: date, parts: dict[str, str]) -> Iterator[date]:
    step = max(int(parts.get("INTERVAL", "1")), 1)
    match parts["FREQ"]:
        case "DAILY":
            day = first
            while True:
                yield day
                day += timedelta(days=step)
        case "WEEKLY":
            named = parts.get("BYDAY", WEEKDAYS[first.weekday()]).split(",")
            wanted = sorted(WEEKDAYS.index(one) for one in named)
            monday = first - timedelta(days=first.weekday())
            while True:
                yield from (monday + timedelta(days=one) for one in wanted)
                monday += timedelta(weeks=step)
        case _:
            months = step if parts["FREQ"] == "MONTHLY" else 12 * step
            number = first.year * 12 + first.month - 1
            while number < 12 * 9998:
                year, month = divmod(number, 12)
                # The 31st, or a 29 February, is left out where there is none.
                if first.day <= calendar.monthrange(year, month + 1)[1]:
                    yield date(year, month + 1, first.day)
                number += months


def midnight(day: date, zone: tzinfo) -> datetime:
    """Return when a day begins."""
    return datetime.combine(day, time(), zone)
