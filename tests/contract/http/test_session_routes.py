"""Sessions over HTTP and on the event stream, as operators and programs use them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, unix_connect

from fakes.running_daemon import InProcess, make_project, require_error_shape
from fakes.session_lab import message
from kaged.base import JsonObject
from kaged.sessions.entry import EntryRole
from kaged.sessions.move import MoveVeto, SwitchIntent
from kaged.sessions.session_services import SessionServices
from kaged.store.agent_run_rows import AgentRunStatus, RunResult
from requirements import requirement

PROJECT = """\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  tools:
    "*": { enabled: true }
"""


class SessionStage:
    """The session routes of one loaded project."""

    def __init__(self, inside: InProcess, project_id: str) -> None:
        self.inside = inside
        self.id = project_id

    @property
    def sessions(self) -> SessionServices:
        sessions = self.inside.daemon.services.subsystems.sessions
        assert sessions is not None
        return sessions

    def url(self, path: str) -> str:
        return f"/api/v1/projects/{self.id}{path}"

    async def ask(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        answer = await self.inside.client.request(method, self.url(path), json=body)
        assert answer.status_code == expect, answer.text
        if expect >= 400:
            return require_error_shape(answer.json())
        return answer.json()

    async def begin(self, *said: str, **more: Any) -> str:
        made = await self.ask("POST", "/sessions", more, 201)
        await self.sessions.transcript.append(made["id"], [message(text) for text in said])
        return str(made["id"])

    async def events(self, name: str) -> list[dict[str, Any]]:
        await self.inside.daemon.services.audit.flush()
        page = await self.inside.client.get("/api/v1/audit", params={"event": name})
        return [one["data"] for one in page.json()["items"]]


async def _loaded(inside: InProcess, root: Path) -> SessionStage:
    answer = await inside.client.post("/api/v1/projects", json={"root": str(root), "trust": True})
    assert answer.status_code == 201, answer.text
    return SessionStage(inside, answer.json()["id"])


@pytest.fixture
async def stage(inside: InProcess, tmp_path: Path) -> SessionStage:
    return await _loaded(inside, make_project(tmp_path / "sample", PROJECT))


@pytest.fixture
async def streamed(served: InProcess, tmp_path: Path) -> SessionStage:
    return await _loaded(served, make_project(tmp_path / "sample", PROJECT))


def said(entries: list[dict[str, Any]]) -> list[str]:
    return [
        block["text"]
        for entry in entries
        if entry["kind"] == "message"
        for block in entry["content"]["content"]
    ]


async def test_a_sessions_way_through_the_routes(stage: SessionStage) -> None:
    first = await stage.begin("hello", "world", title="First", model="fast")
    found = await stage.ask("GET", f"/sessions/{first}")
    assert (found["title"], found["model"], found["entries"]) == ("First", "fast", 3)
    assert (found["status"], found["kind"], found["current"]) == ("idle", "primary", True)
    assert found["header"]["cwd"].endswith("/sample")
    assert (found["active_run"], found["pending"]) == (None, [])
    renamed = await stage.ask("PATCH", f"/sessions/{first[:14]}", {"title": "Renamed"})
    assert renamed["title"] == "Renamed"
    second = await stage.begin("other", current=False)
    listed = await stage.ask("GET", "/sessions?limit=1")
    assert listed["total"] == 2
    more = await stage.ask("GET", f"/sessions?limit=1&cursor={listed['next_cursor']}")
    assert {listed["items"][0]["id"], more["items"][0]["id"]} == {first, second}
    hits = await stage.ask("GET", "/sessions/search?q=world")
    assert [(hit["session_id"], hit["snippet"]) for hit in hits["items"]] == [(first, "world")]
    gone = await stage.ask("DELETE", f"/sessions/{second}")
    assert gone["id"] == second
    await stage.ask("GET", f"/sessions/{second}", expect=404)
    assert [one["session_id"] for one in await stage.events("kaged.session.deleted")] == [second]


async def test_entries_are_read_a_piece_at_a_time_or_from_the_end(stage: SessionStage) -> None:
    session = await stage.begin("a", "b", "c")
    page = await stage.ask("GET", f"/sessions/{session}/entries?limit=2")
    assert (said(page["items"]), page["total"]) == (["a"], 4)
    rest = await stage.ask("GET", f"/sessions/{session}/entries?after={page['next_after']}")
    assert (said(rest["items"]), rest["next_after"]) == (["b", "c"], None)
    tail = await stage.ask("GET", f"/sessions/{session}/entries?tail=true&limit=1")
    assert said(tail["items"]) == ["c"]
    error = await stage.ask("GET", f"/sessions/{session}/entries?after=7ZZ", expect=404)
    assert error["code"] == "entry_not_found"


async def test_a_fork_and_a_switch_over_the_routes(stage: SessionStage) -> None:
    first = await stage.begin("a", "b")
    entries = (await stage.ask("GET", f"/sessions/{first}/entries"))["items"]
    stay = await stage.ask("POST", f"/sessions/{first}/fork", {"at": entries[1]["id"]}, 201)
    assert stay["current"] == first
    assert stay["session"]["parent_entry"] == entries[1]["id"]
    go = await stage.ask("POST", f"/sessions/{first}/fork", {"switch": True}, 201)
    assert go["current"] == go["session"]["id"] != first
    back = await stage.ask("POST", f"/sessions/{first}/switch")
    assert (back["current"], back["from"], back["pending"]) == (first, go["current"], False)
    tree = await stage.ask("GET", "/sessions/tree")
    assert tree["sessions"][0]["id"] == first
    assert {one["parent_session"] for one in tree["sessions"]} == {None, first}
    error = await stage.ask("POST", f"/sessions/{first}/fork", {"at": "01"}, 409)
    assert error["code"] == "entry_ambiguous"
    aside = await stage.ask(
        "POST", f"/sessions/{stay['session']['id']}/fork", {"switch": True}, 201
    )
    assert aside["current"] == aside["session"]["id"]
    assert len(await stage.events("kaged.session.forked")) == 3
    moves = await stage.events("kaged.session.switched")
    assert {one["session_id"] for one in moves} == {go["current"], first, aside["current"]}
    assert {one["caller"] for one in moves} == {"operator"}


async def test_a_veto_and_a_run_keep_a_session_where_it_is(stage: SessionStage) -> None:
    first = await stage.begin("a")
    second = await stage.begin("b", current=False)

    async def no(_: SwitchIntent) -> MoveVeto:
        return MoveVeto("not today", by="guard")

    stage.sessions.navigation.before_switch.append(no)
    error = await stage.ask("POST", f"/sessions/{second}/switch", expect=409)
    assert error["code"] == "session_move_vetoed"
    assert "not today" in error["message"]
    stage.sessions.navigation.before_switch.remove(no)
    run = await stage.sessions.service.begin_run(first)
    waits = await stage.ask("POST", f"/sessions/{second}/switch")
    assert (waits["pending"], waits["session"], waits["current"]) == (True, None, first)
    detail = await stage.ask("GET", f"/sessions/{first}")
    assert (detail["active_run"], detail["pending"]) == (run.id, ["switch"])
    error = await stage.ask("DELETE", f"/sessions/{first}", expect=409)
    assert error["code"] == "session_busy"
    await stage.sessions.service.finish_run(run.id, RunResult(AgentRunStatus.COMPLETED, 2))
    await stage.sessions.navigation.apply(first)
    assert (await stage.ask("GET", "/sessions/tree"))["current"] == second
    (shown,) = (await stage.ask("GET", f"/sessions/{first}/runs"))["items"]
    assert (shown["status"], shown["steps"], shown["cause"]) == ("completed", 2, "message")


async def test_an_export_comes_back_as_it_was(stage: SessionStage) -> None:
    first = await stage.begin("a", "b", title="Take me")
    copy = await stage.inside.client.get(stage.url(f"/sessions/{first}/export"))
    assert copy.headers["content-type"].startswith("application/x-ndjson")
    answer = await stage.inside.client.post(stage.url("/sessions/import"), content=copy.content)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["imported_from"], made["session"]["title"]) == (first, "Take me")
    again = await stage.inside.client.get(stage.url(f"/sessions/{made['session']['id']}/export"))
    assert again.content.splitlines()[1:] == copy.content.splitlines()[1:]
    for bad in (b"", b"nonsense\n", copy.content[:-20]):
        answer = await stage.inside.client.post(stage.url("/sessions/import"), content=bad)
        assert answer.status_code == 422
        assert require_error_shape(answer.json())["code"] == "session_import_invalid"
    assert (await stage.ask("GET", "/sessions"))["total"] == 2
    assert [one["origin"] for one in await stage.events("kaged.session.imported")] == [first]


async def test_only_an_import_may_be_larger_than_other_bodies(stage: SessionStage) -> None:
    large = b"x" * (2 * 1024 * 1024)
    answer = await stage.inside.client.post(stage.url("/sessions/import"), content=large)
    assert answer.status_code == 422
    answer = await stage.inside.client.post(stage.url("/sessions"), content=large)
    assert answer.status_code == 413
    huge = b"x" * (32 * 1024 * 1024 + 1)
    answer = await stage.inside.client.post(stage.url("/sessions/import"), content=huge)
    assert answer.status_code == 413


async def call(stage: SessionStage, tool: str, params: JsonObject, expect: int = 200) -> Any:
    body = {"agent": "primary", "tool": tool, "params": params}
    answer = await stage.inside.client.post(stage.url("/tools/call"), json=body)
    assert answer.status_code == expect, answer.text
    return answer.json(), answer.headers["x-request-id"]


@requirement("AT-SESS-03")
async def test_every_dispatch_has_its_row(stage: SessionStage, tmp_path: Path) -> None:
    """A call that works, one that fails, one for a tool nobody has, one whose params do not fit."""
    (tmp_path / "sample" / "a.txt").write_text("hello\n")
    params: JsonObject = {"path": "a.txt", "offset": 1}
    _, fine = await call(stage, "file.read", params)
    _, missing = await call(stage, "file.read", {"path": "none.txt"}, 404)
    _, unknown = await call(stage, "no.such", {"api_key": "sk-verysecret123"}, 404)
    _, invalid = await call(stage, "file.read", {"path": 3}, 400)
    listed = await stage.ask("GET", "/sessions")
    session = listed["items"][0]["id"]
    calls = (await stage.ask("GET", f"/sessions/{session}/tool-calls"))["items"]
    assert [one["request_id"] for one in calls] == [fine, missing, unknown, invalid]
    assert [one["status"] for one in calls] == ["completed", "failed", "failed", "failed"]
    assert [one["tool_name"] for one in calls] == ["file.read", "file.read", "no.such", "file.read"]
    first, failed = calls[0], calls[1]
    assert first["session_id"] == session
    assert first["run_id"].startswith("run_")
    assert first["caller"] == "primary"
    assert first["params"] == params
    assert "hello" in json.dumps(first["result"])
    assert first["error"] is None
    assert failed["result"] is None
    assert failed["error"]["code"] == "file_not_found"
    assert "verysecret" not in json.dumps(calls)
    assert all(one["started_at"] <= one["finished_at"] for one in calls)
    of_run = await stage.ask("GET", f"/sessions/{session}/tool-calls?run_id={first['run_id']}")
    assert of_run["total"] == 4


async def _next(stream: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return json.loads(await stream.recv())


@requirement("AT-DISP-06", "AT-SESS-04")
async def test_tool_calls_and_results_are_streamed_in_order_under_one_request_id(
    streamed: SessionStage, tmp_path: Path
) -> None:
    (tmp_path / "sample" / "a.txt").write_text("hello\n")
    url = "ws://kaged/api/v1/events?topics=session"
    async with unix_connect(streamed.inside.socket, url, compression=None) as stream:
        await _next(stream)
        _, fine = await call(streamed, "file.read", {"path": "a.txt"})
        _, missing = await call(streamed, "file.read", {"path": "none.txt"}, 404)
        heard = [await _next(stream) for _ in range(4)]
    assert [(one["name"], one["data"]["request_id"]) for one in heard] == [
        ("tool.started", fine),
        ("tool.finished", fine),
        ("tool.started", missing),
        ("tool.finished", missing),
    ]
    assert heard[0]["data"]["params"] == {"path": "a.txt"}
    assert heard[1]["data"]["status"] == "completed"
    assert "hello" in json.dumps(heard[1]["data"]["result"])
    assert heard[3]["data"]["error"]["code"] == "file_not_found"
    assert [one["seq"] for one in heard] == sorted({one["seq"] for one in heard})
    session = heard[0]["data"]["session_id"]
    kept = (await streamed.ask("GET", f"/sessions/{session}/tool-calls"))["items"]
    assert [(one["request_id"], one["status"]) for one in kept] == [
        (fine, "completed"),
        (missing, "failed"),
    ]
    # A client that was away takes up where it was.
    epoch = streamed.inside.daemon.services.hub.epoch
    url += f"&after={heard[1]['seq']}&epoch={epoch}"
    async with unix_connect(streamed.inside.socket, url, compression=None) as stream:
        await _next(stream)
        assert [await _next(stream) for _ in range(2)] == heard[2:]


async def test_a_client_may_listen_to_one_session_alone(streamed: SessionStage) -> None:
    first = await streamed.begin()
    second = await streamed.begin()
    url = f"ws://kaged/api/v1/events?topics=session:{second}"
    async with unix_connect(streamed.inside.socket, url, compression=None) as stream:
        await _next(stream)
        for session in (first, second):
            await streamed.sessions.transcript.append(session, [message("MARKER", EntryRole.USER)])
        event = await _next(stream)
    assert (event["name"], event["topic"]) == ("entry.appended", f"session:{second}")
    assert event["data"]["session_id"] == second
    assert "MARKER" not in json.dumps(event)


@requirement("AT-SESS-11")
async def test_an_issue_is_bound_to_a_session_and_unbound(stage: SessionStage) -> None:
    """The todo tool and the reminder go by the binding of the moment."""
    made = await stage.ask("POST", "/issues", {"title": "T", "body": "B"}, 201)
    refused, _ = await call(stage, "kaged.todo", {"action": "view"}, 409)
    assert refused["error"]["code"] == "no_bound_issue"
    session = (await stage.ask("GET", "/sessions"))["items"][0]["id"]
    work = stage.inside.daemon.services.subsystems.work
    assert work is not None
    bound = await stage.ask("PUT", f"/sessions/{session}/issue", {"number": made["number"]})
    assert bound["issue_number"] == made["number"]
    await call(stage, "kaged.todo", {"action": "add", "items": ["sweep the floor"]})
    seen, _ = await call(stage, "kaged.todo", {"action": "view"})
    assert "sweep the floor" in json.dumps(seen["result"])
    assert "sweep the floor" in str(await work.todos.reminder(stage.id, session))
    assert (await stage.ask("GET", f"/sessions/{session}"))["issue_bound"] is True
    await stage.ask("PUT", f"/sessions/{session}/issue", {"number": None})
    refused, _ = await call(stage, "kaged.todo", {"action": "view"}, 409)
    assert refused["error"]["code"] == "no_bound_issue"
    assert await work.todos.reminder(stage.id, session) is None
