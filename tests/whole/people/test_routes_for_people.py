"""Every route as a person: those of the table in the reference, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.people import Guest
from whole.harness.project import Project

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"


def _open_to_people() -> set[tuple[str, str]]:
    """Read the table of the page: what a person may ask for."""
    part = PAGE.read_text(encoding="utf-8").partition("## People behind a front end")[2]
    rows = re.findall(r"`([A-Z]+) (/[^`]*)` \|$", part.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 40
    return set(rows)


def _operations(daemon: Daemon) -> list[tuple[str, str]]:
    document = daemon.client.get("/api/v1/openapi.json").json()
    return [(method.upper(), path) for path, ways in document["paths"].items() for method in ways]


@pytest.fixture
def person(guest: Callable[..., Guest]) -> Guest:
    """Return somebody."""
    return guest("eve")


def test_what_the_table_does_not_name_is_refused_to_people_and_put_on_record(
    daemon: Daemon, project: Project, person: Guest
) -> None:
    allowed = _open_to_people()
    closed = [one for one in _operations(daemon) if one not in allowed]
    assert len(closed) > 40
    for method, path in closed:
        filled = re.sub(r"\{\w+\}", "x1", path.replace("{project_id}", project.id))
        if path == "/api/v1/auth/launch" and method == "GET":
            continue  # its token is its own credential, whoever sends it
        got = person.raw(method, filled)
        assert (got.status_code, got.json()["error"]["code"]) == (403, "operator_only"), path
    assert project.get("/issues")["total"] == 0
    rows = daemon.audit("access.denied")
    assert {row["data"]["reason"] for row in rows} >= {"operator_only"}


def test_what_the_table_names_exists_and_is_not_refused_as_the_operators(
    daemon: Daemon, project: Project, person: Guest
) -> None:
    known = set(_operations(daemon))
    for method, path in sorted(_open_to_people()):
        if method == "WS" or path.endswith("/mcp"):
            continue
        assert (method, path) in known, (method, path)
        filled = re.sub(r"\{\w+\}", "1", path.replace("{project_id}", project.id))
        got = person.raw(method, filled)
        code = got.json()["error"]["code"] if got.is_error else ""
        # Whoever leads no team has no invitations; `test_team_leads.py` has those who do.
        of_leads = path.startswith("/api/v1/people/invitations")
        assert (code == "operator_only") is of_leads, (method, path)


def test_the_operator_behind_the_same_address_is_refused_nothing(
    daemon: Daemon, guest: Callable[..., Guest]
) -> None:
    """Without the header the request is the operator's own, who has the token."""
    operator = guest("")
    assert operator.get("/auth/whoami")["operator_id"] is not None
    for path in ("/audit", "/plugins", "/status", "/doctor"):
        assert operator.ask("GET", path).is_success


def test_a_person_writes_under_their_own_name_and_reads_no_notes_for_the_operator(
    project: Project, person: Guest
) -> None:
    place = f"/projects/{project.id}/issues"
    number = person.post(place, {"title": "It squeaks", "body": "Loudly."})["number"]
    project.post(
        f"/issues/{number}/comments", {"body": "internal: eve", "visibility": "operator_only"}
    )
    person.post(f"{place}/{number}/comments", {"body": "Any news?"})
    shown = person.get(f"{place}/{number}")
    assert "internal: eve" not in str(shown)
    assert "internal: eve" in str(project.get(f"/issues/{number}"))
    assert shown["created_by"] == "eve"
    assert [one["author"] for one in shown["updates"] if one["body"] == "Any news?"] == ["eve"]
