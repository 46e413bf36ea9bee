"""Two front ends of one daemon, with equal ids of chats and of people: nothing is shared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import Guest, Person
from whole.harness.project import Project
from whole.harness.talk import fresh

CONFIG = """[auth]
trusted_proxies = ["127.0.0.1", "127.0.0.2"]
[auth.front_end]
same_people = ["slack"]
"""
GROUP = Person("ann", "group", "g-1")
Come = Callable[..., Guest]


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that believes front ends at two addresses."""
    made = Daemon(module_path / "h", config=CONFIG, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def come(daemon: Daemon) -> Iterator[Come]:
    """Yield who lets people in through a front end: by its name, its address or both."""
    made: list[Guest] = []

    def arrive(person: Person, name: str = "", address: str = "127.0.0.1") -> Guest:
        said = {"X_Kaged_Front_End": name} if name else {}
        made.append(Guest(daemon, person, address=address, **said))
        return made[-1]

    yield arrive
    for one in made:
        one.close()


FRONT_ENDS: tuple[dict[str, str], ...] = (
    {},
    {"address": "127.0.0.2"},
    {"name": "matrix"},
    {"name": "slack"},
)


def _told(guest: Guest, project: Project, model: ModelServer, word: str) -> str:
    """Begin a session, say something in it, and return its id."""
    model.play(word, call("file.create", path=f"{word}.txt", content=word), say(f"{word} done."))
    place = f"/projects/{project.id}/sessions"
    session = str(guest.post(place)["id"])
    run = guest.post(f"{place}/{session}/message", {"text": f"{word} please"})["run_id"]

    def ended() -> list[dict[str, Any]]:
        found = guest.get(f"{place}/{session}/runs")["items"]
        return [one for one in found if one["id"] == run and one["status"] == "completed"]

    wait_for(ended, "the end of the run")
    return session


def test_chats_of_equal_ids_are_not_one_chat(
    project: Project, model: ModelServer, come: Come
) -> None:
    bob = replace(GROUP, user="bob")
    place = f"/projects/{project.id}/sessions"
    for way in FRONT_ENDS:
        word = fresh("secret")
        session = _told(come(GROUP, **way), project, model, word)
        # Bob is in the same group, by the same front end.
        assert session in {one["id"] for one in come(bob, **way).get(place)["items"]}
        for other in FRONT_ENDS:
            if other == way:
                continue
            there = come(bob, **other)
            for path in ("", "/entries", "/tool-calls", "/runs"):
                refusal = there.refused("GET", f"{place}/{session}{path}")
                assert refusal == (404, "session_not_found"), (way, other, path)
            for path in ("/fork", "/message", "/cancel", "/resume"):
                body = {"text": "hello"} if path == "/message" else {}
                refusal = there.refused("POST", f"{place}/{session}{path}", body)
                assert refusal == (404, "session_not_found"), (way, other, path)
            assert session not in json.dumps(there.get(place))
            assert session not in json.dumps(there.get(f"{place}/tree"))
            assert there.get(f"{place}/search?q={word}")["items"] == []
            assert word not in json.dumps(there.get(f"/projects/{project.id}/undo"))
            assert session not in json.dumps(there.mcp(project.id, "resources/list", {}))


def test_events_of_one_front_ends_group_are_not_heard_in_another_ones(
    project: Project, model: ModelServer, come: Come
) -> None:
    ann, word = come(GROUP, name="matrix"), fresh("heard")
    bob, stranger = replace(GROUP, user="bob"), replace(GROUP, user="eve")
    with (
        come(bob, name="matrix").listening() as beside,
        come(stranger).listening() as elsewhere,
        come(stranger, name="slack").listening() as further,
    ):
        session = _told(ann, project, model, word)
        assert beside.until(lambda event: session in json.dumps(event))
        for one, way in ((elsewhere, {}), (further, {"name": "slack"})):
            own = _told(come(stranger, **way), project, model, fresh("own"))
            seen = one.until(lambda event, own=own: own in json.dumps(event))
            assert session not in json.dumps(seen)


def test_equal_ids_of_people_are_one_person_only_where_the_operator_says_so(
    daemon: Daemon, project: Project, model: ModelServer, come: Come
) -> None:
    private = Person("ann", "private", "p-1")
    names = {way.get("name", ""): come(private, **way) for way in FRONT_ENDS}
    assert names["matrix"].get("/auth/whoami")["operator_id"] == "from:matrix:ann"
    assert names["slack"].get("/auth/whoami")["operator_id"] == "ann"
    place = f"/projects/{project.id}/sessions"
    session = _told(names["matrix"], project, model, fresh("own"))
    for name in ("", "slack"):
        assert names[name].refused("GET", f"{place}/{session}") == (404, "session_not_found")
        assert session not in json.dumps(names[name].get(place))
    # Those of `same_people` are who the front ends without a name mean, in private.
    session = _told(names["slack"], project, model, fresh("shared"))
    assert names[""].get(f"{place}/{session}")["id"] == session
    assert names["matrix"].refused("GET", f"{place}/{session}") == (404, "session_not_found")
    # Nobody gets there by a name.
    forged = come(replace(private, user="from:matrix:ann"))
    assert forged.refused("GET", place) == (403, "access_denied")
    forged = come(private, name="kaged")
    assert forged.refused("GET", place) == (403, "access_denied")
    rows = daemon.audit("access.denied")
    assert "access_denied" in {row["data"]["reason"] for row in rows}


def test_a_front_ends_name_from_an_address_that_nobody_trusts_is_nothing(
    daemon: Daemon, project: Project
) -> None:
    headers = {"Authorization": f"Bearer {daemon.token}", **GROUP.headers}
    transport = httpx.HTTPTransport(local_address="127.0.0.3")
    with httpx.Client(transport=transport, trust_env=False) as client:
        got = client.get(
            f"{daemon.url}/api/v1/auth/whoami", headers={**headers, "X-Kaged-Front-End": "matrix"}
        )
    Daemon.spoken += 1
    assert got.json()["operator_id"] == "operator"
