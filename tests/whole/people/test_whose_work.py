"""Workflows, undo and the record: each person starts, sees, ends and takes back their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import Guest
from whole.harness.project import Project
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]
ASK = {"questions": [{"id": "q", "title": "Sure?", "options": ["yes", "no"]}]}


@pytest.fixture(scope="module")
def shared(daemon: Daemon, module_path: Path) -> Project:
    """Return a project with a workflow for guests and one that is the operator's."""
    inputs = {"word": {"type": "string", "required": True}}
    steps = {"description": "Do it.", "inputs": inputs}
    workflows = {
        "report": {**steps, "invokable_by": ["operator", "guest"]},
        "deploy": {**steps, "invokable_by": ["operator"]},
    }
    made = Project(module_path / "work")
    made.describe(top={"workflows": workflows})
    return daemon.load(made)


def _start(guest: Guest, project: Project, word: str, name: str = "report") -> str:
    place = f"/projects/{project.id}/workflows/{name}/runs"
    return str(guest.post(place, {"inputs": {"word": word}})["run_id"])


def _ended(guest: Guest, project: Project, run: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = guest.get(f"/projects/{project.id}/runs/{run}")
        return found if found["status"] != "running" else None

    found = wait_for(look, "the end of the workflow")
    assert found is not None
    return found


def test_a_workflow_belongs_to_the_person_who_started_it(
    daemon: Daemon, shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob, word = guest("ann"), guest("bob"), fresh("report")
    model.play(word, call("file.create", path=f"{word}.txt", content=word), say(f"{word} done."))
    place = f"/projects/{shared.id}"
    assert [one["name"] for one in ann.get(f"{place}/workflows")["workflows"]] == ["report"]
    refusal = ann.refused("POST", f"{place}/workflows/deploy/runs", {"inputs": {"word": word}})
    assert refusal == (404, "workflow_not_found")
    run = _start(ann, shared, word)
    assert _ended(ann, shared, run)["status"] == "succeeded"
    for stranger in (bob, guest("ann", "group", "g-1"), guest("bob", "group", "g-1")):
        assert stranger.get(f"{place}/runs")["total"] == 0
        for method, path in (("GET", ""), ("POST", "/cancel")):
            assert stranger.refused(method, f"{place}/runs/{run}{path}") == (404, "run_not_found")
        assert stranger.refused("GET", f"{place}/sessions/{run}") == (404, "session_not_found")
    assert [one["run_id"] for one in ann.get(f"{place}/runs")["items"]] == [run]
    # Her session of it is hers as any other, and can be taken away by her alone.
    assert word in ann.ask("GET", f"{place}/sessions/{run}/export").text
    assert bob.refused("GET", f"{place}/sessions/{run}/export") == (404, "session_not_found")
    assert run in [one["run_id"] for one in shared.get("/runs")["items"]]
    (begun,) = shared.get(f"/sessions/{run}/runs")["items"]
    assert begun["operator_id"] == "ann"
    (row,) = daemon.audit("kaged.workflow.triggered", project_id=shared.id)
    assert row["data"]["caller"] == "ann"


def test_a_group_sees_and_ends_its_workflows_and_nobody_elsewhere_does(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest("ann", "group", "g-9"), guest("bob", "group", "g-9")
    word = fresh("group")
    model.play(word, call("kaged.ask", **ASK), say("Never."))
    run = _start(ann, shared, word)
    place = f"/projects/{shared.id}/runs/{run}"
    assert bob.get(place)["status"] == "running"
    assert guest("bob").refused("POST", f"{place}/cancel") == (404, "run_not_found")
    assert bob.post(f"{place}/cancel")["status"] == "cancelled"
    assert ann.get(place)["error"] == "bob ended it"


def _write(guest: Guest, project: Project, model: ModelServer, name: str) -> str:
    word = fresh(name)
    model.play(word, call("file.create", path=f"{name}.txt", content=word), say("Done."))
    session = str(guest.post(f"/projects/{project.id}/sessions")["id"])
    place = f"/projects/{project.id}/sessions/{session}"
    run = guest.post(f"{place}/message", {"text": f"{word} please"})["run_id"]

    def ended() -> list[Any]:
        found = guest.get(f"{place}/runs")["items"]
        return [one for one in found if one["id"] == run and one["status"] in ENDED]

    wait_for(ended, "the end of the run")
    return session


def test_undo_takes_back_ones_own_steps_and_no_others(
    daemon: Daemon, shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest("ann"), guest("bob")
    hers = _write(ann, shared, model, "hers")
    his = _write(bob, shared, model, "his")
    place = f"/projects/{shared.id}/undo"
    assert {one["session_id"] for one in bob.get(place)["steps"]} == {his}
    assert his not in {one["session_id"] for one in ann.get(place)["steps"]}
    for body in ({"session_id": hers}, {"session_id": hers, "count": 1}):
        assert bob.refused("POST", place, body) == (404, "undo_not_found")
    assert bob.get(f"{place}?session_id={hers}") == {"steps": [], "total": 0}
    # The last step of the project is Bob's; the last of hers is what Ann takes back.
    undone = ann.post(place, {})
    assert [one["path"] for one in undone["files"]] == ["./hers.txt"]
    assert not (shared.root / "hers.txt").exists()
    assert (shared.root / "his.txt").exists()
    (row,) = [one for one in daemon.audit("file.reverted") if one["data"]["session_id"] == hers]
    assert row["data"]["caller"] == "ann"
    assert {his} <= {one["session_id"] for one in shared.get("/undo")["steps"]}


def test_in_a_group_others_steps_are_seen_and_not_taken_back(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest("ann", "group", "g-5"), guest("bob", "group", "g-5")
    session = _write(ann, shared, model, "common")
    place = f"/projects/{shared.id}/undo"
    assert [one["session_id"] for one in bob.get(place)["steps"]] == [session]
    assert bob.refused("POST", place, {"session_id": session}) == (404, "undo_not_found")
    assert ann.post(place, {"session_id": session})["files"][0]["path"] == "./common.txt"


def _use(guest: Guest, project: Project, tool: str, **params: Any) -> str:
    """Call a tool without an agent in between; returns the call's id."""
    body = {"agent": "primary", "tool": tool, "params": params}
    return str(guest.post(f"/projects/{project.id}/tools/call", body)["request_id"])


def _called(guest: Guest, project: Project, request_id: str) -> list[str]:
    """Return in which sessions that somebody may see a call was made."""
    place = f"/projects/{project.id}/sessions"
    found = [one["id"] for one in guest.get(place)["items"]]
    calls = {one: guest.get(f"{place}/{one}/tool-calls")["items"] for one in found}
    return [one for one in found if request_id in {call["request_id"] for call in calls[one]}]


def test_a_direct_call_is_its_persons_and_nobody_elses(
    daemon: Daemon, shared: Project, guest: Come
) -> None:
    fay, gus = guest("fay"), guest("gus")
    ids = {
        name: _use(person, shared, "file.create", path=f"{name}.md", content=name)
        for name, person in (("fay", fay), ("gus", gus))
    }
    (hers,), (his,) = _called(fay, shared, ids["fay"]), _called(gus, shared, ids["gus"])
    assert hers != his
    # A second call goes on in the same session, one from a group's chat does not.
    assert _called(fay, shared, _use(fay, shared, "file.read", path="fay.md")) == [hers]
    group = guest("fay", "group", "g-6")
    shown = _use(group, shared, "file.read", path="fay.md")
    (common,) = _called(group, shared, shown)
    assert common != hers
    assert _called(guest("gus", "group", "g-6"), shared, shown) == [common]
    # Nobody else finds it: by session, undo or the record.
    place = f"/projects/{shared.id}"
    for other in (gus, group, guest("hal"), guest("gus", "group", "g-6")):
        assert _called(other, shared, ids["fay"]) == []
        assert other.refused("GET", f"{place}/sessions/{hers}") == (404, "session_not_found")
        assert hers not in str(other.get(f"{place}/undo"))
        assert other.refused("POST", f"{place}/undo", {"session_id": hers})[0] == 404
        assert ids["fay"] not in str(other.get(f"{place}/audit"))
    assert ids["fay"] in str(fay.get(f"{place}/audit"))
    # Gus did the last thing; Fay takes back her own.
    assert [one["path"] for one in fay.post(f"{place}/undo", {})["files"]] == ["./fay.md"]
    assert (shared.root / "gus.md").exists()
    # The operator's direct calls are the operator's own.
    own = shared.post(
        "/tools/call", {"agent": "primary", "tool": "file.read", "params": {"path": "gus.md"}}
    )
    assert _called(gus, shared, own["request_id"]) == []
    (row,) = [
        one
        for one in daemon.audit("tool.called", project_id=shared.id)
        if one["request_id"] == own["request_id"]
    ]
    assert row["data"]["session_id"] not in {hers, his, common}


def test_what_an_mcp_client_does_is_taken_back_by_its_person_alone(
    shared: Project, guest: Come
) -> None:
    ivy, jay = guest("ivy"), guest("jay")
    arguments = {"path": "ivy.md", "content": "x"}
    done = ivy.mcp(shared.id, "tools/call", {"name": "file.create", "arguments": arguments})
    assert not done["result"].get("isError"), done
    place = f"/projects/{shared.id}/undo"
    assert jay.get(place)["steps"] == []
    assert jay.refused("POST", place, {})[0] == 404
    assert [one["path"] for one in ivy.post(place, {})["files"]] == ["./ivy.md"]


def test_the_record_shows_each_person_what_they_did(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    cy, dee = guest("cy"), guest("dee")
    ours, theirs = _write(cy, shared, model, "ours"), _write(dee, shared, model, "theirs")
    place = f"/projects/{shared.id}/audit"
    for person, own in ((cy, ours), (dee, theirs)):
        rows = person.get(f"{place}?event=tool.*")["items"]
        assert {one["event"] for one in rows} == {"tool.called", "tool.completed"}
        begun = [one for one in rows if one["event"] == "tool.called"]
        assert {one["data"]["session_id"] for one in begun} == {own}
        assert {one["request_id"] for one in rows} == {one["request_id"] for one in begun}
        assert person.get(f"{place}?text={'theirs' if own == ours else 'ours.txt'}")["items"] == []
    # In a group nothing of what was done in private; and the whole trail is the operator's.
    assert guest("cy", "group", "g-2").get(place)["items"] == []
    assert guest("eve").get(place)["items"] == []
    assert cy.refused("GET", "/audit") == (403, "operator_only")
    everything = shared.get("/audit?event=tool.called")["items"]
    assert {ours, theirs} <= {one["data"]["session_id"] for one in everything}
