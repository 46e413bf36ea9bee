"""The table of what people may use, the reference page and the routes say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fakes.running_daemon import InProcess
from kaged.base import KagedError
from kaged.kernel.identity import Actor, VouchedBy
from kaged.serve.http.person_access import PERSON_ROUTES, WEBSOCKET, require_for_person

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"
PERSON = Actor("ann", VouchedBy.BEARER, is_person=True)


def test_the_reference_page_shows_the_table_row_by_row() -> None:
    part = PAGE.read_text(encoding="utf-8").partition("## People behind a front end")[2]
    listed = [line for line in part.partition("\n## ")[0].splitlines() if line.endswith("` |")]
    assert listed == [
        f"| {one.on} | `{'WS' if one.method == WEBSOCKET else one.method} {one.path}` |"
        for one in PERSON_ROUTES
    ]


async def test_the_page_about_everybody_has_every_route_with_the_same_words(
    inside: InProcess,
) -> None:
    document = (await inside.client.get("/api/v1/openapi.json")).json()
    routes = {(way.upper(), path) for path, ways in document["paths"].items() for way in ways}
    wanted = dict.fromkeys(routes, "the operator")
    wanted[("GET", "/api/v1/auth/launch")] = "whom the launch token names"
    for one in PERSON_ROUTES:
        wanted["WS" if one.method == WEBSOCKET else one.method, one.path] = one.on
    page = (PAGE.parent / "who-may-do-what.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^\| `([A-Z]+) (/[^`]*)` \| (.*) \|$", page)
    but = "; not those of others, for the operator either"
    assert {(way, path): who.removesuffix(but) for way, path, who in listed} == wanted
    assert len(listed) == len(wanted)


async def test_every_row_of_the_table_is_a_route(inside: InProcess) -> None:
    document = (await inside.client.get("/api/v1/openapi.json")).json()
    routes = {(way.upper(), path) for path, ways in document["paths"].items() for way in ways}
    rows = {(one.method, one.path) for one in PERSON_ROUTES}
    mcp = {(way, path) for way, path in rows if path.endswith("/mcp") or way == WEBSOCKET}
    assert rows - mcp <= routes
    assert len(rows) == len(PERSON_ROUTES)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/audit"),
        ("POST", "/api/v1/projects"),
        ("GET", "/api/v1/projects/prj_1/lua"),
        ("GET", "/api/v1/projects/prj_1/sessions/ses_1/entries/"),
        ("GET", "/api/v1/projects/prj_1/sessions/ses_1/x/entries"),
        ("PUT", "/api/v1/projects/prj_1/sessions/ses_1"),
        ("GET", "/api/v1/projects/prj_1\n"),
        ("GET", "/api/v1//projects"),
        ("BREW", "/api/v1/projects"),
        (WEBSOCKET, "/api/v1/projects"),
        ("GET", "/api/v1/events"),
    ],
)
def test_what_is_no_row_is_refused_to_a_person_and_not_to_the_operator(
    method: str, path: str
) -> None:
    with pytest.raises(KagedError) as refusal:
        require_for_person(PERSON, method, path)
    assert refusal.value.code == "operator_only"
    require_for_person(Actor.operator("op", VouchedBy.UNIX), method, path)
    require_for_person(PERSON, "HEAD", "/api/v1/projects")
