"""caldav.calendar against a real Radicale."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from fakes.calendar_server import radicale
from fakes.provider_lab import ProviderLab
from fakes.running_daemon import WAIT_S
from kaged.base import SystemClock
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
)
from kaged.services.providers.caldav_calendar import CalDavCalendar, CalendarSettings
from kaged.services.providers.linkpage import LinkPage
from raising import raises_code
from requirements import requirement

USERS = {"ann": "ann-pass-1", "bob": "bob-pass-1"}
MARCH: dict[str, Any] = {"start": "2026-03-01", "end": "2026-04-01"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with radicale(tmp_path_factory.mktemp("radicale"), USERS) as url:
        for user, password in USERS.items():
            for name in ("home", "work") if user == "ann" else ("home",):
                made = httpx.request(
                    "MKCALENDAR",
                    f"{url}{user}/{name}/",
                    auth=(user, password),
                    trust_env=False,
                    timeout=WAIT_S,
                )
                assert made.status_code == 201
        yield url


def make_lab(url: str, user: str) -> tuple[ProviderLab, LinkPage]:
    page = LinkPage(SystemClock())
    settings = CalendarSettings("caldav", url)
    return ProviderLab(CalDavCalendar(settings, clock=SystemClock(), page=page), "calendar"), page


@pytest.fixture
async def lab(server: str) -> AsyncIterator[ProviderLab]:
    made, page = make_lab(server, "ann")
    await made.credential.put({"username": "ann", "password": USERS["ann"]})
    yield made
    await page.close()


async def create(lab: ProviderLab, title: str, day: int, **more: Any) -> str:
    made = await lab.invoke(
        "create",
        calendar="/ann/home/",
        title=title,
        start=f"2026-03-{day:02d}T09:00:00+01:00",
        end=f"2026-03-{day:02d}T10:00:00+01:00",
        **more,
    )
    return made["event_id"]


async def test_an_account_is_linked_on_the_page(server: str) -> None:
    lab, page = make_lab(server, "ann")
    begun = await lab.begin("work")
    async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
        wrong = await browser.post(begun.auth_url, data={"username": "ann", "password": "nonono"})
        right = await browser.post(
            begun.auth_url, data={"username": "ann", "password": "ann-pass-1"}
        )
    assert wrong.status_code == 401
    code = re.search(r"<code>([^<]+)</code>", right.text)
    assert code is not None
    assert (await lab.complete(begun, code[1], "work")).account_ref == "acct_work"
    assert len((await lab.invoke("calendars"))["calendars"]) == 2
    await page.close()


async def test_calendars_are_found_from_the_servers_root(lab: ProviderLab) -> None:
    found = (await lab.invoke("calendars"))["calendars"]
    assert sorted(one["calendar"] for one in found) == ["/ann/home/", "/ann/work/"]
    assert all(one["writable"] for one in found)


@requirement("SC-PROV-07")
async def test_an_event_lives_through_create_list_search_update_delete(lab: ProviderLab) -> None:
    event_id = await create(lab, "Dentist", 3, location="Main St 1", description="Bring card")
    (seen,) = (await lab.invoke("search", text="dentIST", **MARCH))["events"]
    assert seen["event_id"] == event_id
    assert (seen["start"], seen["end"]) == ("2026-03-03T08:00:00Z", "2026-03-03T09:00:00Z")
    assert (seen["location"], seen["all_day"], seen["recurring"]) == ("Main St 1", False, False)
    await lab.invoke(
        "update",
        event_id=event_id,
        version=seen["version"],
        title="Dentist, late",
        start="2026-03-03T12:00:00Z",
        end="2026-03-03T13:00:00Z",
    )
    (changed,) = (await lab.invoke("search", text="late", **MARCH))["events"]
    assert (changed["start"], changed["location"]) == ("2026-03-03T12:00:00Z", "Main St 1")
    with pytest.raises(CapabilityInvalidInput, match="changed meanwhile"):
        await lab.invoke("update", event_id=event_id, version=seen["version"], title="x")
    with pytest.raises(CapabilityInvalidInput, match="changed meanwhile"):
        await lab.invoke("delete", event_id=event_id, version=seen["version"])
    assert await lab.invoke("delete", event_id=event_id) == {"deleted": True}
    assert await lab.invoke("delete", event_id=event_id) == {"deleted": False}
    assert (await lab.invoke("search", text="late", **MARCH))["total"] == 0


async def test_days_zones_and_order(lab: ProviderLab) -> None:
    await lab.invoke(
        "create",
        calendar="/ann/work/",
        title="Holiday",
        start="2026-03-20",
        end="2026-03-22",
    )
    await lab.invoke(
        "create",
        calendar="/ann/work/",
        title="Berlin",
        start="2026-03-30T09:00:00",
        end="2026-03-30T09:30:00",
        timezone="Europe/Berlin",
    )
    events = (await lab.invoke("list", calendar="/ann/work/", **MARCH))["events"]
    assert [(one["title"], one["start"], one["all_day"]) for one in events] == [
        ("Holiday", "2026-03-20", True),
        ("Berlin", "2026-03-30T07:00:00Z", False),
    ]
    assert (await lab.invoke("list", calendar="/ann/work/", limit=1, **MARCH))["total"] == 2


async def test_a_series_comes_as_its_occurrences(lab: ProviderLab, server: str) -> None:
    text = (
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:series\r\n"
        "DTSTAMP:20260101T000000Z\r\nDTSTART:20260302T100000Z\r\nDTEND:20260302T110000Z\r\n"
        "RRULE:FREQ=WEEKLY;COUNT=10\r\nSUMMARY:Weekly\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    put = httpx.put(
        f"{server}ann/home/series.ics",
        content=text,
        auth=("ann", USERS["ann"]),
        trust_env=False,
        timeout=WAIT_S,
    )
    assert put.status_code == 201
    events = (await lab.invoke("search", text="weekly", **MARCH))["events"]
    assert [one["start"][:10] for one in events] == [
        *("2026-03-02", "2026-03-09", "2026-03-16", "2026-03-23", "2026-03-30")
    ]
    assert all(one["recurring"] for one in events)


async def test_the_same_key_makes_one_event(lab: ProviderLab) -> None:
    given = {
        "calendar": "/ann/home/",
        "title": "Once",
        "start": "2026-03-05T10:00:00Z",
        "end": "2026-03-05T11:00:00Z",
    }
    first = await lab.invoke("create", "key-1", **given)
    assert await lab.invoke("create", "key-1", **given) == first
    assert (await lab.invoke("search", text="Once", **MARCH))["total"] == 1


async def test_of_several_calendars_one_must_be_chosen(lab: ProviderLab) -> None:
    with pytest.raises(CapabilityInvalidInput, match="name the calendar"):
        await lab.invoke(
            "create", title="x", start="2026-03-05T10:00:00Z", end="2026-03-05T11:00:00Z"
        )


@pytest.mark.parametrize(
    "given",
    [
        {"start": "2026-03-05T10:00:00", "end": "2026-03-05T11:00:00"},
        {"start": "2026-03-05T10:00:00Z", "end": "2026-03-05T09:00:00Z"},
        {"start": "2026-03-05", "end": "2026-03-05T09:00:00Z"},
        {"start": "tomorrow!!", "end": "2026-03-05T09:00:00Z"},
        {
            "start": "2026-03-05T10:00:00",
            "end": "2026-03-05T11:00:00",
            "timezone": "../../etc/passwd",
        },
    ],
)
async def test_times_that_make_no_sense_are_refused(lab: ProviderLab, given: Any) -> None:
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("create", calendar="/ann/home/", title="x", **given)


@pytest.mark.parametrize(
    "place",
    ["http://evil.example/x.ics", "//evil.example/x", "/ann/../bob/home/", "/ann/%2e%2e/bob/home/"],
)
async def test_credentials_never_go_to_another_place(lab: ProviderLab, place: str) -> None:
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("delete", event_id=place)
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("list", calendar=place)


async def test_anothers_calendar_stays_shut(lab: ProviderLab) -> None:
    with raises_code("capability_access_denied", CapabilityError):
        await lab.invoke("list", calendar="/bob/home/", **MARCH)


async def test_text_of_others_cannot_break_out_of_its_line(lab: ProviderLab) -> None:
    title = "Party\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nSUMMARY:forged"
    await create(lab, title, 17)
    found = (await lab.invoke("search", text="forged", **MARCH))["events"]
    assert len(found) == 1
    assert found[0]["title"].startswith("Party")


async def test_a_withdrawn_password_asks_for_a_new_link(lab: ProviderLab) -> None:
    await lab.credential.put({"username": "ann", "password": "changed"})
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("calendars")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500),
        httpx.Response(302, headers={"location": "http://evil.example/"}),
        httpx.Response(207, text="<no xml"),
        httpx.Response(207, text='<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'),
        httpx.Response(207, content=b"x" * (8 * 1024 * 1024 + 1)),
    ],
)
async def test_a_server_that_makes_no_sense_is_a_backend_error(answer: httpx.Response) -> None:
    page = LinkPage(SystemClock())
    provider = CalDavCalendar(
        CalendarSettings("caldav", "https://dav.example/"),
        clock=SystemClock(),
        page=page,
        transport=httpx.MockTransport(lambda _: answer),
    )
    lab = ProviderLab(provider, "calendar")
    await lab.credential.put({"username": "ann", "password": "x"})
    with pytest.raises(CapabilityBackendUnavailable):
        await lab.invoke("calendars")
