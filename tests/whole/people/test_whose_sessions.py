"""Two people behind one front end: nobody sees, steers or answers what belongs to the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import Guest
from whole.harness.project import Project
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]


def _begin(guest: Guest, project: Project) -> str:
    return str(guest.post(f"/projects/{project.id}/sessions")["id"])


def _tell(guest: Guest, project: Project, session: str, text: str) -> dict[str, Any]:
    """Send a message and wait for the end of the run."""
    place = f"/projects/{project.id}/sessions/{session}"
    run = guest.post(f"{place}/message", {"text": text})["run_id"]

    def ended() -> list[dict[str, Any]]:
        found = guest.get(f"{place}/runs")["items"]
        return [one for one in found if one["id"] == run and one["status"] in ENDED]

    return wait_for(ended, "the end of the run")[0]


@pytest.fixture
def talked(project: Project, model: ModelServer, guest: Come) -> tuple[Guest, str, str]:
    """Return Ann in private, a session of hers, and a word that only it holds."""
    ann, word = guest("ann"), fresh("mailbox")
    model.play(word, call("file.create", path=f"{word}.txt", content=word), say(f"{word} is done."))
    session = _begin(ann, project)
    _tell(ann, project, session, f"{word} please")
    return ann, session, word


ROUTES = (
    ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/entries"), ("GET", "/export"),
    ("GET", "/runs"), ("GET", "/tool-calls"), ("POST", "/message"), ("POST", "/cancel"),
    ("POST", "/resume"), ("POST", "/compact"), ("POST", "/fork"),
)  # fmt: skip
BODIES = {"/message": {"text": "hello"}, "": {"title": "mine"}}


def test_a_stranger_finds_nothing_of_a_private_session_by_any_route(
    project: Project, guest: Come, talked: tuple[Guest, str, str]
) -> None:
    ann, session, word = talked
    place = f"/projects/{project.id}/sessions"
    for bob in (guest("bob"), guest("bob", "group", "g-1"), guest("bob", "private", "private-ann")):
        for method, path in ROUTES:
            body = BODIES.get(path, {}) if method in {"POST", "PATCH"} else None
            refusal = bob.refused(method, f"{place}/{session}{path}", body)
            assert refusal == (404, "session_not_found"), (method, path)
        assert bob.refused("GET", f"{place}/{session[:20]}") == (404, "session_not_found")
        assert bob.get(place)["total"] == 0
        assert bob.get(f"{place}/tree") == {"sessions": [], "current": None}
        assert bob.get(f"{place}/search?q={word}")["items"] == []
        where = bob.refused("GET", f"{place}/search?q={word}&session={session}")
        assert where == (404, "session_not_found")
        assert word not in json.dumps(bob.mcp(project.id, "resources/list", {}))
        read = bob.mcp(project.id, "resources/read", {"uri": f"kaged://sessions/{session}"})
        assert "error" in read, read
    # What she has, and the operator sees, is as it was.
    assert [one["id"] for one in ann.get(place)["items"]] == [session]
    assert ann.get(f"{place}/search?q={word}")["total"] >= 1
    assert f"kaged://sessions/{session}" in json.dumps(ann.mcp(project.id, "resources/list", {}))
    assert project.get(f"/sessions/{session}/tool-calls")["total"] == 1


def test_a_question_is_answered_by_the_person_who_was_asked_and_nobody_else(
    daemon: Daemon, project: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob, word = guest("ann"), guest("bob", "group", "g-1"), fresh("question")
    question = {"questions": [{"id": "q", "title": f"{word}?", "options": ["yes", "no"]}]}
    model.play(word, call("kaged.ask", **question), say(f"{word} went on."))
    session = _begin(ann, project)
    assert _tell(ann, project, session, f"{word} please")["status"] == "paused"
    place = f"/projects/{project.id}/interactions"
    (asked,) = [one for one in ann.get(place)["items"] if one["session_id"] == session]
    number = asked["request_id"]
    answer = {"answers": {"q": "yes"}}
    # Ann herself is not asked in a group where others read along.
    for other in (bob, guest("bob"), guest("ann", "group", "g-1")):
        assert [one for one in other.get(place)["items"] if one["session_id"] == session] == []
        assert other.refused("GET", f"{place}/{number}") == (404, "interaction_not_found")
        refusal = other.refused("POST", f"{place}/{number}/answer", answer)
        assert refusal == (404, "interaction_not_found")
        assert other.refused("DELETE", f"{place}/{number}") == (404, "interaction_not_found")
        assert number not in json.dumps(other.get("/inbox"))
        assert other.refused("GET", f"/inbox/{number}") == (404, "inbox_request_not_found")
    assert ann.get(f"{place}/{number}")["status"] == "pending"

    ann.post(f"{place}/{number}/answer", answer)

    def went_on() -> list[dict[str, Any]]:
        runs = ann.get(f"/projects/{project.id}/sessions/{session}/runs")["items"]
        return [one for one in runs if one["status"] == "completed"]

    wait_for(went_on, "the run that goes on")
    assert ann.get(f"{place}/{number}")["answered_by"] == "ann"
    (row,) = daemon.audit("kaged.interaction.answered", project_id=project.id)
    assert row["data"]["caller"] == "ann"


def test_a_group_shares_its_sessions_and_the_one_who_began_manages_them(
    project: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest("ann", "group", "g-7"), guest("bob", "group", "g-7")
    session = _begin(ann, project)
    place = f"/projects/{project.id}/sessions/{session}"
    word = fresh("group")
    model.play(word, say("Hello Bob."))
    assert _tell(bob, project, session, f"{word} please")["status"] == "completed"
    assert word in json.dumps(ann.get(f"{place}/entries"))
    for method, path in (("PATCH", ""), ("DELETE", ""), ("GET", "/export")):
        assert bob.refused(method, f"{place}{path}", BODIES.get(path)) == (403, "not_yours")
    for elsewhere in (guest("bob", "group", "g-8"), guest("bob"), guest("cy", "group", "g-8")):
        assert elsewhere.refused("GET", place) == (404, "session_not_found")
    # In private Ann has it as well; what she begins there stays out of the group.
    assert guest("ann").get(place)["id"] == session
    mine = _begin(guest("ann"), project)
    assert ann.refused("GET", f"/projects/{project.id}/sessions/{mine}")[0] == 404
    assert ann.ask("DELETE", place).is_success


def test_a_fork_belongs_to_whom_its_parent_belongs(
    project: Project, guest: Come, talked: tuple[Guest, str, str]
) -> None:
    ann, session, word = talked
    place = f"/projects/{project.id}/sessions"
    made = ann.post(f"{place}/{session}/fork", {"switch": False})["session"]["id"]
    by_operator = project.post(f"/sessions/{session}/fork", {"switch": False})["session"]["id"]
    bob = guest("bob")
    for one in (made, by_operator):
        assert ann.get(f"{place}/{one}")["id"] == one
        assert bob.refused("GET", f"{place}/{one}/entries") == (404, "session_not_found")
    assert bob.get(f"{place}/search?q={word}")["total"] == 0
    # The project's current session is the operator's.
    assert ann.refused("POST", f"{place}/{session}/fork", {"switch": True})[1] == "operator_only"
    assert ann.refused("GET", f"{place}/current") == (404, "session_not_found")


def test_an_imported_session_is_its_importers(
    project: Project, guest: Come, talked: tuple[Guest, str, str]
) -> None:
    ann, session, _ = talked
    place = f"/api/v1/projects/{project.id}/sessions"
    copy = ann.raw("GET", f"{place}/{session}/export").content
    bob = guest("bob")
    taken = bob.raw("POST", f"{place}/import", content=copy).json()["session"]["id"]
    assert bob.raw("GET", f"{place}/{taken}").is_success
    assert ann.raw("GET", f"{place}/{taken}").status_code == 404


def test_the_event_stream_carries_what_is_a_persons_and_nothing_else(
    project: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest(fresh("ann")), guest(fresh("bob"))
    theirs, own = fresh("theirs"), fresh("own")
    model.play(theirs, say(f"{theirs} secret"))
    model.play(own, say("yours"))
    of_ann, of_bob = _begin(ann, project), _begin(bob, project)
    with bob.listening() as heard:
        _tell(ann, project, of_ann, f"{theirs} please")
        project.post("/issues", {"title": "for the operator's log", "body": ""})
        _tell(bob, project, of_bob, f"{own} please")
        events = heard.until(lambda one: one["name"] == "run.completed")
    assert {one["topic"] for one in events} == {f"session:{of_bob}"}
    assert theirs not in json.dumps(events)
    # What was missed is filtered in the same way when it is asked for later.
    with bob.listening("?after=0") as later:
        events = later.until(lambda one: one["name"] == "run.completed")
    assert {one["topic"] for one in events} == {f"session:{of_bob}"}
