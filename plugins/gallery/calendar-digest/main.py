"""calendar-digest: what the next days bring, out of iCalendar feeds."""

from __future__ import annotations

import threading
from typing import Any

from kaged.sdk import CallContext, ConfigInvalid, InvalidParams, Plugin
from kaged.sdk.http_request import HttpUnreachable, http_request

MAX_EVENTS = 200
MAX_FEEDS = 20

plugin = Plugin("calendar-digest", "0.1.0")
config: dict[str, Any] = {}
# By feed: what it said last with its tag, so that an unchanged one is not sent again.
kept: dict[str, tuple[str, str]] = {}
keeping = threading.Lock()


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration."""
    if len(new.get("feeds", {})) > MAX_FEEDS:
        raise ConfigInvalid(f"at most {MAX_FEEDS} feeds are read")
    config.clear()
    config.update(new)
    with keeping:
        kept.clear()


@plugin.tool("digest")
def digest(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Return the events of the next days."""
    return read(str(params.get("start", "")), int(params.get("days", 7)))


@plugin.hook("on_session_start")
def on_session_start(params: dict[str, Any], context: CallContext) -> dict[str, Any] | None:
    """Put what today brings into the prompt, where the project wants that."""
    if (context.config or {}).get("inject_on_start") is not True:
        return None
    events = read("", 1)["events"]
    if not events:
        return None
    lines = (f"- {one['start'][11:16] or 'all day'} {one['title']}" for one in events)
    return {"inject": "Today's calendar:\n" + "\n".join(lines)}


def read(start: str, days: int) -> dict[str, Any]:
    """Read all feeds; one that cannot be read is named and keeps nobody from the others."""
    # Dates and zones take as much memory as the rest of the plugin; not while it waits.
    from datetime import date, datetime, timedelta  # noqa: PLC0415 - see the line above

    from ics import midnight, occurrences  # noqa: PLC0415 - see above

    zone = zone_of(str(config.get("zone", "UTC")))
    try:
        first = date.fromisoformat(start) if start else datetime.now(zone).date()
    except ValueError:
        raise InvalidParams(f"{start} is no day") from None
    begin, end = midnight(first, zone), midnight(first + timedelta(days=days), zone)
    found: list[tuple[Any, str]] = []
    problems: list[dict[str, str]] = []
    for name, url in sorted(config.get("feeds", {}).items()):
        try:
            text = fetch(name, str(url))
        except HttpUnreachable as error:
            problems.append({"calendar": name, "problem": str(error)})
            continue
        found += [(one, name) for one in occurrences(text, begin, end)]
    found.sort()
    events: list[dict[str, Any]] = []
    busy_until, busy_with = begin, ""
    for one, name in found[:MAX_EVENTS]:
        shown: dict[str, Any] = {
            "calendar": name,
            "title": one.title,
            "start": one.start.date().isoformat()
            if one.all_day
            else one.start.astimezone(zone).isoformat(timespec="minutes"),
        }
        if one.place:
            shown["place"] = one.place
        if one.irregular:
            shown["irregular"] = True
        if not one.all_day:
            shown["end"] = one.end.astimezone(zone).isoformat(timespec="minutes")
            if one.start < busy_until and busy_with:
                shown["conflicts_with"] = busy_with
            if one.end > busy_until:
                busy_until, busy_with = one.end, one.title
        events.append(shown)
    result: dict[str, Any] = {"events": events, "count": len(events), "zone": str(zone)}
    if len(found) > MAX_EVENTS:
        result["total"] = len(found)
    if problems:
        result["unread"] = problems
    return result


def zone_of(name: str) -> Any:
    """Return a time zone by its name."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - as in `read`

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigInvalid(f"there is no time zone {name!r} here") from None


def fetch(name: str, url: str) -> str:
    """Return a feed's text, from memory when it has not changed. Raises HttpUnreachable."""
    with keeping:
        tag, known = kept.get(name, ("", ""))
    headers = {"Accept": "text/calendar"} | ({"If-None-Match": tag} if tag else {})
    answer = http_request("GET", url, headers)
    if answer.status == 304 and known:
        return known
    if answer.status != 200:
        raise HttpUnreachable(f"it answered {answer.status}")
    if "BEGIN:VCALENDAR" not in answer.text[:1000]:
        raise HttpUnreachable("what it answered is no calendar")
    with keeping:
        kept[name] = (answer.headers.get("etag", ""), answer.text)
    return answer.text


if __name__ == "__main__":
    plugin.start()
