"""The built-in tools of a real daemon, called as agents of a loaded project."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, make_project
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement, ToolRequirement
from kaged.sessions.agent_tools import AgentToolService
from requirements import requirement

CODER = "primary.subagents.coder"
ALL = "{'file.*': {enabled: true}, 'edit.*': {enabled: true}, 'search.*': {enabled: true}}"
PROJECT = f"""\
project: sample
primary:
  model: m
  system_prompt: p
  tools: {{'file.*': {{enabled: true}}, 'shell.*': {{enabled: true}}, 'flie.*': {{enabled: true}}}}
  subagents:
    coder:
      model: m
      system_prompt: p
      description: Writes code.
      cage: {{fs: [{{mode: rw, path: ./src}}]}}
      tools: {ALL}
    free:
      model: m
      system_prompt: p
      cage: disabled
      tools: {ALL}
    plain:
      model: m
      system_prompt: p
      cage: {{fs: [{{mode: ro, path: ./src}}, {{mode: rw, path: ./out}}]}}
      tools: {ALL}
    relaxed:
      model: m
      system_prompt: p
      cage: {{fs: [{{mode: ro, path: ./src}}, {{mode: rw, path: ./out}}], seccomp: relaxed}}
      tools: {ALL}
    bare: {{model: m, system_prompt: p, tools: {ALL}}}
"""


class ToolServiceLab:
    """A daemon with one project, and calls as its agents over HTTP."""

    def __init__(self, inside: InProcess, root: Path, project_id: str) -> None:
        self.inside = inside
        self.root = root
        self.id = project_id
        self.seen: list[str] = []

    @property
    def registry(self) -> Any:
        tool_service = self.inside.daemon.services.subsystems.tools
        assert isinstance(tool_service, AgentToolService)
        return tool_service.registry

    async def post(self, what: str, **body: Any) -> tuple[int, Any]:
        url = f"/api/v1/projects/{self.id}/tools/{what}"
        answer = await self.inside.client.post(url, json=body)
        self.seen.append(answer.text)
        return answer.status_code, answer.json()

    async def call(self, tool: str, agent: str = "primary", **params: Any) -> Any:
        status, body = await self.post("call", agent=agent, tool=tool, params=params)
        assert status == 200, body
        return body["result"]

    async def refusal(self, tool: str, agent: str = "primary", **params: Any) -> str:
        status, body = await self.post("call", agent=agent, tool=tool, params=params)
        assert status >= 400, body
        return str(body["error"]["code"])

    async def names(self, agent: str = "primary") -> list[str]:
        url = f"/api/v1/projects/{self.id}/tools"
        answer = await self.inside.client.get(url, params={"agent": agent})
        assert answer.status_code == 200, answer.text
        return [one["name"] for one in answer.json()["tools"]]


@pytest.fixture
async def tool_service(tmp_path: Path) -> AsyncIterator[ToolServiceLab]:
    root = make_project(tmp_path / "project", PROJECT)
    for name in ("src/main.py", "out/log.py", "data/secrets.py"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("print('needle')\n", encoding="utf-8")
    async with daemon_in_process(tmp_path / "home") as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201, answer.text
        yield ToolServiceLab(inside, root, answer.json()["id"])


@requirement(
    "AT-REG-03",
    "AT-REG-09",
    "AT-REG-10",
    "AT-REG-11",
    "AT-REG-14",
    "AT-REG-15",
    "AT-REG-16",
    "AT-SCOPE-01",
)
async def test_the_built_in_tools_are_there_from_the_start(tool_service: ToolServiceLab) -> None:
    registry = tool_service.registry
    assert registry.names("file") == ("file.create", "file.read", "file.write")
    assert registry.names("edit") == ("edit.ast", "edit.text")
    assert registry.names("search") == ("search.ast", "search.glob", "search.grep")
    assert registry.names("shell") == ("shell.bash", "shell.jobs")
    kaged = registry.list("kaged")
    root_only = {one.name for one in kaged if one.definition.principal_scope == "root-only"}
    assert root_only == {
        "kaged.issue",
        "kaged.todo",
        "kaged.ask",
        "kaged.form",
        "kaged.workflow.trigger",
        "kaged.workflow.list",
        "kaged.workflow.status",
    }
    assert {one.name for one in kaged} - root_only == {"kaged.checkpoint", "kaged.upload"}
    assert all(one.definition.requires == () for one in kaged)
    assert registry.get("kaged.issue").actions == (
        "list",
        "get",
        "create",
        "comment",
        "transition",
    )
    assert registry.get("kaged.todo").actions == (
        "view",
        "set",
        "add",
        "start",
        "done",
        "drop",
        "note",
    )
    scopes = {name: registry.find(name).entry.definition.principal_scope for name in (
        "kaged.issue.list", "kaged.issue.get", "kaged.issue.create", "kaged.issue.comment",
        "kaged.issue.transition")}  # fmt: skip
    assert set(scopes.values()) == {"root-only"}


async def test_the_tools_ask_of_a_cage_what_the_table_says(tool_service: ToolServiceLab) -> None:
    def needs(name: str, **args: Any) -> list[str]:
        tool = tool_service.registry.get(name).tool
        reader = tool.requires_for
        found = tool.definition.requires if reader is None else reader(args)
        return [_word(one) for one in found]

    for name in ("file.read", "search.grep", "search.glob", "search.ast"):
        assert needs(name) == ["fs ro"], name
    for name in ("file.write", "file.create", "edit.text"):
        assert needs(name) == ["fs rw"], name
    assert needs("edit.ast", dry_run=True) == ["fs ro"]
    assert needs("edit.ast", dry_run=False) == ["fs rw"]
    assert sorted(needs("shell.bash")) == ["capability shell", "fs rw"]


def _word(need: ToolRequirement) -> str:
    match need:
        case FsRequirement():
            return f"fs {need.mode}"
        case CapabilityRequirement():
            return f"capability {need.name}"
        case _:
            return repr(need)


@requirement("AT-REG-26", "AT-AMB-02")
async def test_what_does_not_exist_is_not_found(tool_service: ToolServiceLab) -> None:
    for name in ("eval", "kaged.issue.update", "web.search", "job.run"):
        status, body = await tool_service.post("call", tool=name)
        assert (status, body["error"]["code"]) == (404, "tool_not_found")
        assert body["error"]["data"]["number"] == -32601


@requirement("AT-RES-08", "AT-RES-21")
async def test_switching_off_reaches_the_running_dispatcher(tool_service: ToolServiceLab) -> None:
    text = PROJECT.replace("'flie.*': {enabled: true}", "'kaged.issue.create': {enabled: false}")
    make_project(tool_service.root, text)
    url = f"/api/v1/projects/{tool_service.id}"
    assert (
        await tool_service.inside.client.post(f"{url}/reload", json={"trust": True})
    ).status_code == 200
    assert await tool_service.refusal("kaged.issue", action="create", title="x") == "tool_not_found"
    assert await tool_service.refusal("kaged.issue.create", title="x") == "tool_not_found"
    await tool_service.call("kaged.issue", action="list")
    shown = (await tool_service.inside.client.get(f"{url}/tools")).json()["tools"]
    (issue,) = [one for one in shown if one["name"] == "kaged.issue"]
    assert "create" not in issue["parameters"]["properties"]["action"]["enum"]
    assert issue["off_actions"] == ["create"]
    make_project(tool_service.root, text.replace("kaged.issue.create", "kaged.issue.*"))
    assert (
        await tool_service.inside.client.post(f"{url}/reload", json={"trust": True})
    ).status_code == 200
    assert await tool_service.refusal("kaged.issue", action="list") == "tool_not_found"
    assert "kaged.workflow.list" in await tool_service.names()
    assert "kaged.issue" not in await tool_service.names()


async def test_outcomes_are_streamed(tool_service: ToolServiceLab) -> None:
    hub = tool_service.inside.daemon.services.hub
    before = hub.latest
    await tool_service.call("file.read", path="src/main.py")
    await tool_service.refusal("file.read", path="../x")
    told = [json.loads(one.text) for one in hub.read(before) if one.topic == "tool"]
    assert [(one["name"], one["data"]["success"]) for one in told] == [
        ("tool.outcome", True),
        ("tool.outcome", False),
    ]
    assert told[1]["data"]["error"]["code"] == "invalid_params"


async def test_a_list_tells_why_and_warns(tool_service: ToolServiceLab) -> None:
    url = f"/api/v1/projects/{tool_service.id}/tools"
    body = (await tool_service.inside.client.get(url)).json()
    why = {one["name"]: one["why"] for one in body["tools"]}
    assert why["kaged.issue"] == "default of the root agent"
    assert why["file.read"].startswith("tools: 'file.*' {enabled: true} (line ")
    assert "agent-coder" in why
    assert [one["pattern"] for one in body["warnings"]] == ["flie.*"]
    assert (
        await tool_service.inside.client.get(url, params={"agent": "primary.x"})
    ).status_code == 404
    status, _ = await tool_service.post("call", tool="agent-coder", params={"message": "hello"})
    assert status == 404


async def test_an_explanation_over_http_runs_nothing(tool_service: ToolServiceLab) -> None:
    status, body = await tool_service.post(
        "explain", agent=CODER, tool="file.write", params={"path": "./data/a", "content": "x"}
    )
    assert status == 200
    assert not body["allowed"]
    closed = body["gates"][-1]
    assert (closed["step"], closed["detail"]) == ("cage", "rw:fs:./data/a")
    assert closed["remedy"] == "grant rw on ./data/a"
    status, body = await tool_service.post(
        "explain", agent=CODER, tool="file.write", params={"path": "./src/new", "content": "x"}
    )
    assert body["allowed"]
    assert body["changes"]
    assert not (tool_service.root / "src" / "new").exists()


@requirement("AT-BEY-08", "AT-FILT-08")
async def test_the_operator_sets_quotas_and_what_searches_tell(tmp_path: Path) -> None:
    config = (
        '[daemon]\nbind = "127.0.0.1:0"\n[tools]\noutside_hits = "omit"\n'
        'quotas = [{ tools = "file.*", calls = 3, per = "run" }]\n'
    )
    root = make_project(tmp_path / "project", PROJECT)
    for name in ("src/main.py", "data/secrets.py"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("print('needle')\n", encoding="utf-8")
    async with daemon_in_process(tmp_path / "home", config=config) as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        tool_service = ToolServiceLab(inside, root, answer.json()["id"])
        for _ in range(3):
            await tool_service.call("file.read", path="src/main.py")
        status, body = await tool_service.post(
            "call", tool="file.read", params={"path": "src/main.py"}
        )
        assert (status, body["error"]["code"]) == (429, "quota_exceeded")
        await tool_service.call("kaged.issue", action="list")
        await tool_service.call("file.read", CODER, path="src/main.py")  # counted for itself
        await inside.daemon.services.audit.flush()
        rows = (await inside.client.get("/api/v1/audit", params={"event": "tool.denied"})).json()
        assert rows["items"][0]["data"]["error_code"] == "quota_exceeded"
        grep = await tool_service.call("search.grep", CODER, pattern="needle", path=".")
        assert grep["total_matches"] == 1
        assert [one["file"] for one in grep["matches"]] == ["./src/main.py"]
        ast = await tool_service.call("search.ast", CODER, pattern="print($A)", lang="python")
        assert ast["count"] == 1
        assert "secrets" not in json.dumps([grep, ast])
        listed = await tool_service.call("search.glob", CODER, pattern="**/*.py")
        assert "secrets" not in json.dumps(listed)


async def test_a_first_call_over_http_has_a_session_to_work_in(
    tool_service: ToolServiceLab,
) -> None:
    """Not `session_not_found`: what is missing is an issue to keep todos on."""
    assert await tool_service.refusal("kaged.todo", action="view") == "no_bound_issue"


@requirement("AT-BEY-15")
async def test_calls_are_counted_per_tool_and_agent(tool_service: ToolServiceLab) -> None:
    async def stats(**asked: str) -> list[dict[str, Any]]:
        answer = await tool_service.inside.client.get("/api/v1/tools/stats", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()["series"]

    assert await stats() == []
    await tool_service.call("file.read", path="src/main.py")
    await tool_service.call("file.read", CODER, path="src/main.py")
    assert (
        await tool_service.refusal("file.read", CODER, path="data/secrets.py")
        == "capability_denied"
    )
    assert await tool_service.refusal("file.read", path="src/nothing.py") == "file_not_found"
    assert await tool_service.refusal("file.made_up") == "tool_not_found"
    await tool_service.call("file.read", path="src/main.py")
    (own,) = await stats(project_id=tool_service.id, agent="primary", tool="file.read")
    assert (own["calls"], own["failed"], own["denied"]) == (3, 1, 0)
    assert own["errors"] == {"file_not_found": 1}
    assert own["error_rate"] == round(1 / 3, 4)
    assert sum(own["latency_ms"].values()) == 3
    assert own["latency_sum_ms"] >= 0
    (coder,) = await stats(agent=CODER)
    assert (coder["calls"], coder["denied"]) == (2, 1)
    assert [one["tool"] for one in await stats(tool="(unknown)")] == ["(unknown)"]
    text = (await tool_service.inside.client.get("/metrics")).text
    labels = f'agent="primary",outcome="ok",project="{tool_service.id}",tool="file.read"'
    assert f"kaged_tool_calls_total{{{labels}}} 2.0" in text
    assert 'code="capability_denied"' in text
    assert "made_up" not in text
    bucket = f'agent="primary",le="+Inf",project="{tool_service.id}",tool="file.read"'
    assert f"kaged_tool_call_seconds_bucket{{{bucket}}} 3.0" in text
