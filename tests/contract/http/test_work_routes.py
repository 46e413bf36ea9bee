"""Issues, todos, workflows and questions over HTTP, as operators and programs use them."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, make_project, require_error_shape
from kaged.store.interaction_rows import InteractionKind
from kaged.tools import ToolCallContext
from requirements import requirement

PROJECT = """\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
workflows:
  deploy:
    description: Ship it.
    inputs:
      branch: { type: string, required: true }
      dry_run: { type: boolean, default: false }
  ingest:
    inputs:
      table: { type: file, required: true }
    invokable_by: [operator, guest]
"""
FORM = {
    "fields": [
        {
            "name": "logo", "label": "Logo", "type": "file", "required": True, "description": "",
            "options": [],
        }
    ]
}  # fmt: skip


class Work:
    """The routes of one loaded project."""

    def __init__(self, inside: InProcess, project_id: str) -> None:
        self.inside = inside
        self.id = project_id

    async def ask(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        url = f"/api/v1/projects/{self.id}{path}"
        answer = await self.inside.client.request(method, url, json=body)
        assert answer.status_code == expect, answer.text
        if expect >= 400:
            return require_error_shape(answer.json())
        return answer.json()

    async def events(self, name: str) -> list[dict[str, Any]]:
        await self.inside.daemon.services.audit.flush()
        page = await self.inside.client.get("/api/v1/audit", params={"event": name})
        return [one["data"] for one in page.json()["items"]]

    async def file(self, title: str = "Title", body: str = "Body") -> int:
        made = await self.ask("POST", "/issues", {"title": title, "body": body}, 201)
        return int(made["number"])

    async def question(self, kind: InteractionKind, payload: Any, request_id: str) -> None:
        work = self.inside.daemon.services.subsystems.work
        assert work is not None
        context = ToolCallContext(
            "ses_1", "run_1", "primary", self.id, str(self.inside.places.home), None, request_id
        )
        await work.interactions.request(context, kind, payload)


@pytest.fixture
async def work(inside: InProcess, tmp_path: Path) -> Work:
    root = make_project(tmp_path / "sample", PROJECT)
    answer = await inside.client.post("/api/v1/projects", json={"root": str(root), "trust": True})
    assert answer.status_code == 201, answer.text
    return Work(inside, answer.json()["id"])


async def test_an_issues_way_through_the_routes(work: Work) -> None:
    number = await work.file("Dark mode", "The UI should be dark.")
    issue = f"/issues/{number}"
    found = await work.ask("GET", issue)
    assert (found["status"], found["created_by"], found["updates"]) == ("open", "operator", [])
    note = {"body": "for us", "visibility": "operator_only"}
    assert (await work.ask("POST", f"{issue}/comments", note, 201))["issue_number"] == number
    moved = await work.ask("POST", f"{issue}/transition", {"to": "resolved", "comment": "done"})
    assert (moved["from"], moved["to"]) == ("open", "resolved")
    assert (await work.ask("GET", issue))["resolved_by"] == "operator"
    assert (await work.ask("GET", "/issues"))["items"] == []
    assert (await work.ask("GET", "/issues?status=resolved&search=dark"))["total"] == 1


@requirement("AT-AUD-15", "AT-ISSUE-28", "AT-ISSUE-30")
async def test_only_operators_edit_and_that_is_on_record(work: Work) -> None:
    number = await work.file()
    edited = await work.ask(
        "PATCH", f"/issues/{number}", {"title": "New", "assignment": "workflow:deploy"}
    )
    assert edited["updated_fields"] == ["title", "assignment"]
    assert (await work.ask("PATCH", f"/issues/{number}", {"assignment": None}))["number"] == number
    assert (await work.ask("GET", f"/issues/{number}"))["assignment"] is None
    refused = await work.ask("PATCH", f"/issues/{number}", {"assignment": "workflow:no"}, 422)
    assert refused["code"] == "invalid_assignment"
    assert refused["data"]["workflows"] == ["deploy", "ingest"]
    assert (await work.ask("PATCH", f"/issues/{number}", {}, 400))["code"] == "invalid_params"
    events = await work.events("kaged.issue.updated")
    assert [one["updated_fields"] for one in events] == [["assignment"], ["title", "assignment"]]
    assert {one["caller"] for one in events} == {"operator"}


async def test_changes_by_operators_are_on_record(work: Work) -> None:
    number = await work.file()
    await work.ask("POST", f"/issues/{number}/comments", {"body": "b"}, 201)
    await work.ask("POST", f"/issues/{number}/transition", {"to": "triaged"})
    await work.ask("POST", f"/issues/{number}/todos", {"action": "add", "items": ["a"]})
    for name in ("issue.created", "issue.commented", "issue.transitioned", "todo.added"):
        (event,) = await work.events(f"kaged.{name}")
        assert event["caller"] == "operator"


async def test_lists_come_in_pages(work: Work) -> None:
    for number in range(5):
        await work.file(f"issue {number}")
    seen: list[str] = []
    cursor = ""
    while True:
        page = await work.ask("GET", f"/issues?limit=2{cursor}")
        seen += [one["title"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"issue {number}" for number in range(4, -1, -1)]
    assert (await work.ask("GET", "/issues?cursor=nonsense", expect=400))["code"] == (
        "invalid_cursor"
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/issues/99", None, 404, "issue_not_found"),
        ("GET", "/issues/0", None, 422, "invalid_request"),
        ("POST", "/issues", {"title": "", "body": ""}, 422, "invalid_request"),
        ("POST", "/issues", {"title": " ", "body": ""}, 400, "invalid_params"),
        ("POST", "/issues", {"title": "t", "body": "é" * 9000}, 400, "invalid_params"),
        ("POST", "/issues/1/transition", {"to": "open"}, 409, "invalid_transition"),
        ("POST", "/issues/1/transition", {"to": "rejected"}, 400, "invalid_params"),
        ("GET", "/issues?search=%22", None, 400, "invalid_params"),
        ("GET", "/issues/99/todos", None, 404, "issue_not_found"),
        ("POST", "/issues/1/todos", {"action": "start", "content": "x"}, 404, "todo_not_found"),
        ("POST", "/issues/1/todos", {"action": "done", "content": "id-1"}, 422,
         "content_addressing_hint"),
        ("POST", "/issues/1/todos", {"action": "note", "content": "x"}, 400, "invalid_params"),
        ("POST", "/workflows/nope/runs", {}, 404, "workflow_not_found"),
        ("POST", "/workflows/deploy/runs", {"inputs": {"dry_run": 1}}, 400, "invalid_params"),
        ("POST", "/workflows/ingest/runs", {}, 400, "invalid_params"),
        ("GET", f"/runs/{'0' * 26}", None, 404, "run_not_found"),
        ("POST", f"/runs/{'0' * 26}/cancel", None, 404, "run_not_found"),
        ("GET", "/interactions/req_x", None, 404, "interaction_not_found"),
        ("POST", "/interactions/req_x/answer", {}, 404, "interaction_not_found"),
        ("DELETE", "/interactions/req_x", None, 404, "interaction_not_found"),
        ("PUT", "/sessions/ses_1/issue", {"number": 9}, 404, "issue_not_found"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_told_in_the_one_shape(
    work: Work, method: str, path: str, body: Any, status: int, code: str
) -> None:
    await work.file()
    assert (await work.ask(method, path, body, status))["code"] == code


async def test_a_project_that_is_not_loaded_has_no_work(inside: InProcess) -> None:
    answer = await inside.client.get(f"/api/v1/projects/prj_{'0' * 26}/issues")
    assert require_error_shape(answer.json())["code"] == "project_not_found"


async def test_operators_change_todo_lists_and_drop_criteria(work: Work) -> None:
    path = f"/issues/{await work.file()}/todos"
    await work.ask("POST", path, {"action": "set", "items": ["a", "b"], "phase": "one"})
    await work.ask("POST", path, {"action": "add", "items": ["c"], "kind": "criterion"})
    found = await work.ask("POST", path, {"action": "start", "content": "a"})
    assert found["markdown"] == "- [>] a\n- [ ] b\n- [ ] c (criterion)"
    found = await work.ask("POST", path, {"action": "drop", "content": "c"})
    assert [one["content"] for one in found["todos"]] == ["a", "b"]
    assert await work.ask("GET", path) == found


async def test_a_session_is_bound_to_an_issue_and_has_its_list(work: Work) -> None:
    number = await work.file()
    await work.ask("POST", f"/issues/{number}/todos", {"action": "add", "items": ["a"]})
    tools = "/tools/call"
    asked = {"agent": "primary", "tool": "kaged.todo", "params": {"action": "view"}}
    refused = await work.ask("POST", tools, asked, 409)
    assert refused["code"] == "no_bound_issue"
    session = refused["data"]["detail"]["session_id"]
    bound = await work.ask("PUT", f"/sessions/{session}/issue", {"number": number})
    assert (bound["id"], bound["issue_number"], bound["status"]) == (session, number, "idle")
    found = await work.ask("POST", tools, asked)
    assert found["result"]["markdown"] == "- [ ] a"
    await work.ask("PUT", f"/sessions/{session}/issue", {"number": None})
    assert (await work.ask("POST", tools, asked, 409))["code"] == "no_bound_issue"
    events = await work.events("kaged.session.bound")
    assert [(one["session_id"], one["number"], one["caller"]) for one in events] == [
        (session, None, "operator"), (session, number, "operator"),
    ]  # fmt: skip


@requirement("AT-FLOW-15", "AT-FLOW-06")
async def test_workflows_are_listed_and_checked_for_operators_and_on_for_the_root(
    work: Work,
) -> None:
    found = await work.ask("GET", "/workflows")
    assert [one["name"] for one in found["workflows"]] == ["deploy", "ingest"]
    assert (await work.ask("GET", "/workflows?invokable_by=guest"))["count"] == 1
    # The tool and the route refuse the same inputs with the same words.
    inputs = {"dry_run": "yes", "other": 1}
    route = await work.ask("POST", "/workflows/deploy/runs", {"inputs": inputs}, 400)
    tool = await work.ask(
        "POST",
        "/tools/call",
        {
            "agent": "primary",
            "tool": "kaged.workflow.trigger",
            "params": {"name": "deploy", "inputs": inputs},
        },
        400,
    )
    assert route["message"] == tool["message"]
    assert all(name in route["message"] for name in ("branch", "dry_run", "other"))
    tools = await work.ask("GET", "/tools")
    names = {one["name"] for one in tools["tools"]}
    assert names >= {"kaged.workflow.list", "kaged.workflow.trigger", "kaged.workflow.status"}


async def test_a_workflow_runs_by_itself_and_its_end_can_be_asked_for(work: Work) -> None:
    """This project's model is one that nobody configured, which is what the run then says."""
    broken = {"table": {"name": "t.csv", "content_base64": "a"}}
    refused = await work.ask("POST", "/workflows/ingest/runs", {"files": broken}, 422)
    assert refused["code"] == "invalid_request"
    assert (await work.ask("GET", "/runs"))["total"] == 0
    body = {"inputs": {"branch": "main"}}
    begun = await work.ask("POST", "/workflows/deploy/runs", body, 201)
    run = begun
    while run["status"] == "running":
        run = await work.ask("GET", f"/runs/{begun['run_id']}")
    assert run["status"] == "failed"
    assert "default" in run["error"]


@requirement("AT-AUD-30", "AT-ASK-05", "AT-ASK-06")
async def test_an_operator_answers_a_form_with_a_file(work: Work, tmp_path: Path) -> None:
    await work.question(InteractionKind.FORM, FORM, "req_form")
    (waiting,) = (await work.ask("GET", "/interactions?status=pending"))["items"]
    assert (waiting["request_id"], waiting["payload"]) == ("req_form", FORM)
    answer = "/interactions/req_form/answer"
    refused = await work.ask("POST", answer, {}, 422)
    assert refused["code"] == "interaction_answer_invalid"
    assert refused["data"]["problems"] == [{"field": "logo", "problem": "is required"}]
    file = {"name": "../x", "content_base64": base64.b64encode(b"png").decode()}
    done = await work.ask("POST", answer, {"files": {"logo": file}})
    assert done["status"] == "answered"
    assert done["answer"] == {"answers": {"logo": "config:/tmp/req_form/x"}}
    assert (tmp_path / "sample" / ".kaged" / "tmp" / "req_form" / "x").read_bytes() == b"png"
    (event,) = await work.events("kaged.interaction.answered")
    assert (event["request_id"], event["kind"], event["session_id"], event["outcome"]) == (
        "req_form", "form", "ses_1", "answered",
    )  # fmt: skip
    assert (await work.ask("POST", answer, {}, 409))["code"] == "interaction_closed"


async def test_who_listens_hears_that_attention_is_required(work: Work) -> None:
    hub = work.inside.daemon.services.hub
    before = hub.latest
    await work.question(InteractionKind.CHECKPOINT, {"message": "m", "detail": None}, "req_c")
    await work.ask("DELETE", "/interactions/req_c")
    heard = [event for event in hub.read(before) if event.topic == "attention"]
    assert ['"name":"attention.required"' in one.text for one in heard] == [True, False]
    assert '"message":"m"' in heard[0].text
    assert '"name":"attention.ended"' in heard[1].text


async def test_a_tool_call_over_http_waits_for_the_operator(work: Work) -> None:
    asked = {"agent": "primary", "tool": "kaged.checkpoint", "params": {"message": "May I?"}}

    async def approve() -> None:
        while not (found := (await work.ask("GET", "/interactions?status=pending"))["items"]):
            await asyncio.to_thread(lambda: None)
        path = f"/interactions/{found[0]['request_id']}/answer"
        await work.ask("POST", path, {"decision": "approve", "text": "go on"})

    answer, _ = await asyncio.gather(work.ask("POST", "/tools/call", asked), approve())
    assert (answer["result"]["decision"], answer["result"]["text"]) == ("approve", "go on")
    requested = await work.events("kaged.interaction.requested")
    answered = await work.events("kaged.interaction.answered")
    assert [one["request_id"] for one in requested] == [one["request_id"] for one in answered]
