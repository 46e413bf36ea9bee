"""Usage: the operator sees everybody's, by person, team and day; a person sees their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.people import FRONT_END, Guest
from whole.harness.project import Project
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]
COUNTED = ("input_tokens", "output_tokens", "cached_tokens")
PEOPLE = """
[people.ann]
teams = ["red", "blue"]
[people.bob]
teams = ["red"]
[people."*"]
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    made = Daemon(module_path / "h", config=FRONT_END + PEOPLE, local=model.local_toml())
    made.start()
    yield made
    made.close()


def _spend(
    guest: Guest, project: Project, model: ModelServer, text: str, session: str = ""
) -> tuple[str, dict[str, Any]]:
    """Let somebody say something; returns the session and what the run took."""
    word = fresh("spend")
    model.play(word, say(text))
    place = f"/projects/{project.id}/sessions"
    session = session or str(guest.post(place)["id"])
    run = guest.post(f"{place}/{session}/message", {"text": f"{word} please"})["run_id"]

    def ended() -> list[dict[str, Any]]:
        found = guest.get(f"{place}/{session}/runs")["items"]
        return [one for one in found if one["id"] == run and one["status"] in ENDED]

    (done,) = wait_for(ended, "the end of the run")
    return session, done["usage"]


def _sums(found: Any) -> dict[str, tuple[int, ...]]:
    return {one["name"]: (one["runs"], *(one[name] for name in COUNTED)) for one in found["items"]}


def _total(*runs: dict[str, Any]) -> tuple[int, ...]:
    return (len(runs), *(sum(one[name] for one in runs) for name in COUNTED))


def test_sums_are_those_of_the_runs_for_each_person_team_and_day(
    daemon: Daemon, project: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest("ann"), guest("bob")
    _, first = _spend(ann, project, model, "One.")
    _, second = _spend(ann, project, model, "Two, which is longer than one.")
    _, his = _spend(bob, project, model, "Three.")
    assert first["input_tokens"] > 0
    assert first["output_tokens"] > 0
    operator = _spend(guest(""), project, model, "Four.")[1]

    by_person = _sums(daemon.get("/usage"))
    assert by_person == {
        "ann": _total(first, second), "bob": _total(his), "operator": _total(operator),
    }  # fmt: skip
    teams = _sums(daemon.get("/usage?by=team"))
    assert teams == {"red": _total(first, second, his), "blue": _total(first, second)}
    days = daemon.get("/usage?by=day")["items"]
    assert sum(one["runs"] for one in days) == 4
    assert _sums(daemon.get("/usage?by=project&person=bob")) == {project.id: _total(his)}
    assert daemon.get("/usage?until=2020-01-01T00:00:00Z")["items"] == []
    listed = json.loads(daemon.cli("usage", "--by", "person", "--json").out)
    assert _sums({"items": listed}) == by_person
    shown = daemon.cli("usage", "--person", "ann").out
    assert "ann" in shown
    assert "bob" not in shown

    # Each sees their own, whatever they ask for; a stranger has none.
    for path in ("/usage", "/usage?by=person"):
        assert _sums(ann.get(path)) == {"ann": _total(first, second)}
        assert _sums(bob.get(path)) == {"bob": _total(his)}
    assert bob.get("/usage?person=ann")["items"] == []
    assert _sums(bob.get("/usage?by=team")) == {"red": _total(his)}
    assert guest("eve").get("/usage")["items"] == []
    # Linked accounts go by the id, so nobody is called like an operator who has chosen none.
    assert guest("operator").refused("GET", "/usage") == (403, "access_denied")


def test_in_a_group_each_pays_for_what_they_said_and_sees_only_that_chat_there(
    daemon: Daemon, project: Project, model: ModelServer, guest: Come
) -> None:
    cy, dee = guest("cy", "group", "g-4"), guest("dee", "group", "g-4")
    session, hers = _spend(cy, project, model, "One.")
    _, his = _spend(dee, project, model, "Two.", session)
    _, private = _spend(guest("dee"), project, model, "Three, in private.")
    assert _sums(cy.get("/usage")) == {"cy": _total(hers)}
    assert _sums(dee.get("/usage")) == {"dee": _total(his)}
    assert _sums(guest("dee").get("/usage")) == {"dee": _total(his, private)}
    assert _sums(daemon.get("/usage?person=dee")) == {"dee": _total(his, private)}
