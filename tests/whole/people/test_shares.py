"""What everybody shares: one person has a share of it, and cannot lock the others out."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from whole.harness.conversation import begin, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.people import Guest, Person
from whole.harness.project import Project

Come = Callable[..., Guest]

SESSIONS_EACH = 16  # a quarter of 64
RUNS_EACH = 250  # a quarter of 1000
STREAMS = {"Accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def knock(guest: Guest, project: Project) -> httpx.Response:
    """Ask for one more MCP session."""
    path = f"/api/v1/projects/{project.id}/mcp"
    return guest.raw("POST", path, json=HELLO, headers=STREAMS)


def leave(guest: Guest, project: Project, session: str) -> int:
    """End an MCP session; returns the status of the answer."""
    path = f"/api/v1/projects/{project.id}/mcp"
    return guest.raw("DELETE", path, headers={**STREAMS, "Mcp-Session-Id": session}).status_code


def opened(guest: Guest, project: Project, count: int) -> list[str]:
    """Open that many MCP sessions; returns their ids."""
    answers = [knock(guest, project) for _ in range(count)]
    assert [one.status_code for one in answers] == [200] * count, answers[-1].text
    return [one.headers["mcp-session-id"] for one in answers]


def full(answer: httpx.Response, code: str, limit: int) -> bool:
    """Return whether an answer refuses by this code, names the limit and says what to do."""
    if answer.status_code != 503:
        return False
    error = answer.json()["error"]
    return (error["code"], error["data"]["limit"]) == (code, limit) and bool(error["data"]["fix"])


def test_one_person_cannot_take_all_mcp_sessions(
    daemon: Daemon, project: Project, guest: Come
) -> None:
    ann, bob = guest("ann"), guest("bob")
    hers = opened(ann, project, SESSIONS_EACH - 1)
    # In another chat she is still herself.
    in_group = guest("ann", "group", "g-1")
    hers_there = opened(in_group, project, 1)
    for one in (ann, in_group):
        assert full(knock(one, project), "mcp_too_many_clients", SESSIONS_EACH)
    his = opened(bob, project, SESSIONS_EACH)
    assert full(knock(bob, project), "mcp_too_many_clients", SESSIONS_EACH)
    # Nobody gives back what is another's, and whoever ends one may open one.
    assert leave(bob, project, hers[0]) == 404
    assert full(knock(ann, project), "mcp_too_many_clients", SESSIONS_EACH)
    assert leave(ann, project, hers.pop()) == 200
    hers += opened(ann, project, 1)
    assert full(knock(ann, project), "mcp_too_many_clients", SESSIONS_EACH)
    # A request that opens nothing takes nothing.
    assert leave(bob, project, his.pop()) == 200
    for _ in range(3):
        refused = bob.raw("POST", f"/api/v1/projects/{project.id}/mcp", json={}, headers=STREAMS)
        assert refused.is_error
    his += opened(bob, project, 1)
    # All people together leave the last one to the operator.
    more = {name: guest(name) for name in ("cy", "dee")}
    rest = {name: opened(one, project, 16 - (name == "dee")) for name, one in more.items()}
    assert full(knock(guest("eve"), project), "mcp_too_many_clients", 63)
    assert full(knock(more["dee"], project), "mcp_too_many_clients", 63)
    operator = Guest(daemon, Person())
    assert operator.mcp(project.id, "tools/list", {})["result"]["tools"]
    operator.close()
    for one, ids in ((ann, hers), (in_group, hers_there), (bob, his)):
        assert {leave(one, project, session) for session in ids} == {200}
    for name, one in more.items():
        assert {leave(one, project, session) for session in rest[name]} == {200}


def test_one_person_cannot_take_all_runs(
    daemon: Daemon, project: Project, guest: Come, model: ModelServer
) -> None:
    ann, bob = guest("ann"), guest("bob")
    model.always("gpt-4o", {**say("Late."), "latency": 600_000})
    place = f"/projects/{project.id}/sessions"

    sessions: list[str] = []

    def start(one: Guest) -> httpx.Response:
        sessions.append(one.post(place)["id"])
        session = sessions[-1]
        return one.ask("POST", f"{place}/{session}/message", {"text": "Take your time."})

    started = [start(ann) for _ in range(RUNS_EACH)]
    assert {one.is_success for one in started} == {True}
    assert full(start(ann), "too_many_runs", RUNS_EACH)
    assert start(bob).is_success
    send(project, begin(project), "The operator goes on.")
    # Whoever ends a run may start one.
    ann.post(f"{place}/{sessions[0]}/cancel")
    wait_for(lambda: start(ann).is_success)
    assert full(start(ann), "too_many_runs", RUNS_EACH)
    daemon.ask("DELETE", f"/projects/{project.id}")
