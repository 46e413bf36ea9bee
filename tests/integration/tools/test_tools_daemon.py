"""The built-in tools of a real daemon, called as agents of a loaded project."""

from __future__ import annotations

import asyncio
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
        tool_service = self.inside.daemon.services.tools
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
        answer = await inside.client.post("/api/v1/projects", json={"root": str(root)})
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
    assert registry.names("shell") == ("shell.bash",)
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
    assert {one.name for one in kaged} - root_only == {"kaged.checkpoint"}
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
    for name in ("eval", "kaged.issue.update", "web.fetch", "job.run"):
        status, body = await tool_service.post("call", tool=name)
        assert (status, body["error"]["code"]) == (404, "tool_not_found")
        assert body["error"]["data"]["number"] == -32601


@requirement("AT-REG-25", "AT-AMB-01", "AT-SCOPE-04")
async def test_both_spellings_of_the_issue_tool_work_and_one_is_shown(
    tool_service: ToolServiceLab,
) -> None:
    query = {"pattern": "print($A)", "lang": "python"}
    free = "primary.subagents.free"
    old = await tool_service.call("search.ast_grep", free, **query)
    assert old == await tool_service.call("search.ast", free, **query)
    assert old["matches"]
    assert "search.ast_grep" not in await tool_service.names(free)
    assert {"kaged.issue.comment", "kaged.issue.transition"} <= set(tool_service.registry._found)
    await tool_service.call("kaged.issue", action="create", title="One", body="Text")
    assert await tool_service.call("kaged.issue.get", number=1) == await tool_service.call(
        "kaged.issue", action="get", number=1
    )
    assert (await tool_service.call("kaged.issue", action="list")) == await tool_service.call(
        "kaged.issue.list"
    )
    names = await tool_service.names()
    assert "kaged.issue" in names
    assert not [one for one in names if one.startswith("kaged.issue.")]
    assert (
        await tool_service.refusal("kaged.issue", CODER, action="list")
        == "principal_scope_violation"
    )
    assert await tool_service.refusal("kaged.issue.list", CODER) == "principal_scope_violation"


@requirement("AT-RES-08", "AT-RES-21")
async def test_switching_off_reaches_the_running_dispatcher(tool_service: ToolServiceLab) -> None:
    text = PROJECT.replace("'flie.*': {enabled: true}", "'kaged.issue.create': {enabled: false}")
    make_project(tool_service.root, text)
    url = f"/api/v1/projects/{tool_service.id}"
    assert (await tool_service.inside.client.post(f"{url}/reload")).status_code == 200
    assert await tool_service.refusal("kaged.issue", action="create", title="x") == "tool_not_found"
    assert await tool_service.refusal("kaged.issue.create", title="x") == "tool_not_found"
    await tool_service.call("kaged.issue", action="list")
    shown = (await tool_service.inside.client.get(f"{url}/tools")).json()["tools"]
    (issue,) = [one for one in shown if one["name"] == "kaged.issue"]
    assert "create" not in issue["parameters"]["properties"]["action"]["enum"]
    assert issue["off_actions"] == ["create"]
    make_project(tool_service.root, text.replace("kaged.issue.create", "kaged.issue.*"))
    assert (await tool_service.inside.client.post(f"{url}/reload")).status_code == 200
    assert await tool_service.refusal("kaged.issue", action="list") == "tool_not_found"
    assert "kaged.workflow.list" in await tool_service.names()
    assert "kaged.issue" not in await tool_service.names()


@requirement("AT-RES-12", "AT-DSL-07", "AT-AMB-43")
async def test_an_enabled_tool_still_meets_the_cage(tool_service: ToolServiceLab) -> None:
    await tool_service.call("file.write", CODER, path="./src/a", content="x")
    assert await tool_service.refusal("file.write", CODER, path="./data/a", content="x") == (
        "capability_denied"
    )
    assert not (tool_service.root / "data" / "a").exists()
    # A subagent without a cage block reaches nothing, although its tools are enabled.
    assert "file.read" in await tool_service.names("primary.subagents.bare")
    assert await tool_service.refusal(
        "file.read", "primary.subagents.bare", path="src/main.py"
    ) == ("capability_denied")


COLUMNS = ("free", "plain", "relaxed")


@requirement("AT-PERM-19", "AT-PERM-20")
async def test_files_in_the_three_columns_of_the_table(tool_service: ToolServiceLab) -> None:
    for key in COLUMNS:
        agent, caged = f"primary.subagents.{key}", key != "free"
        for path in ("src/main.py", "out/log.py", "data/secrets.py"):
            hidden = caged and path.startswith("data")
            locked = caged and not path.startswith("out")
            if hidden:
                assert (
                    await tool_service.refusal("file.read", agent, path=path) == "capability_denied"
                )
            else:
                await tool_service.call("file.read", agent, path=path)
            calls: list[tuple[str, dict[str, Any]]] = [
                ("file.create", {"path": f"{path}.{key}", "content": "x"}),
                ("edit.text", {"path": path, "old_string": "needle", "new_string": f"n-{key}"}),
                ("file.write", {"path": path, "content": "print('needle')\n"}),
                (
                    "edit.ast",
                    {"rewrites": {"print($A)": "show($A)"}, "path": path, "dry_run": False},
                ),
                ("file.write", {"path": path, "content": "print('needle')\n"}),
            ]
            for tool, params in calls:
                if locked:
                    assert (
                        await tool_service.refusal(tool, agent, **params) == "capability_denied"
                    ), tool
                else:
                    await tool_service.call(tool, agent, **params)
            if locked:
                assert (tool_service.root / path).read_text(encoding="utf-8") == "print('needle')\n"


@requirement("AT-PERM-21", "AT-FILT-06")
async def test_searches_in_the_three_columns_of_the_table(tool_service: ToolServiceLab) -> None:
    for key in COLUMNS:
        agent, caged = f"primary.subagents.{key}", key != "free"
        found = await tool_service.call(
            "search.grep", agent, pattern="needle", output_mode="content", path="."
        )
        outside = [one for one in found["matches"] if one["file"].startswith("./data")]
        assert outside
        for one in outside:
            assert bool(one.get("outside_cage")) is caged
            assert ("needle" in json.dumps(one)) is (not caged)
        inside = [one for one in found["matches"] if one["file"].startswith("./src")]
        assert "needle" in json.dumps(inside)
        ast = await tool_service.call("search.ast", agent, pattern="print($A)", lang="python")
        hidden = [one for one in ast["matches"] if "data" in json.dumps(one)]
        assert hidden
        assert ("needle" in json.dumps(hidden)) is (not caged)
        listed = await tool_service.call("search.glob", agent, pattern="**/secrets.*")
        assert (listed["files"] == []) is caged


@requirement("AT-PERM-25")
async def test_daemon_tools_are_for_the_root_whatever_the_cage(
    tool_service: ToolServiceLab,
) -> None:
    for key in COLUMNS:
        for tool in (
            "kaged.issue",
            "kaged.todo",
            "kaged.ask",
            "kaged.form",
            "kaged.workflow.list",
            "kaged.workflow.trigger",
            "kaged.workflow.status",
        ):
            code = await tool_service.refusal(tool, f"primary.subagents.{key}")
            assert code == "principal_scope_violation"
    await tool_service.call("kaged.workflow.list")


@requirement("AT-CTX-10")
async def test_a_caged_agent_never_learns_where_the_project_lies(
    tool_service: ToolServiceLab,
) -> None:
    root = str(tool_service.root.resolve())
    for path in ("src/main.py", "src/none.py", "data/secrets.py", "../x", "src", ".", "/etc"):
        for tool, params in (
            ("file.read", {"path": path}),
            ("file.write", {"path": path, "content": "x"}),
            ("file.create", {"path": path, "content": "x"}),
            ("edit.text", {"path": path, "old_string": "a", "new_string": "b"}),
            ("search.grep", {"pattern": "needle", "path": path, "output_mode": "content"}),
            ("search.glob", {"pattern": "**/*", "path": path}),
            ("search.ast", {"pattern": "print($A)", "paths": [path], "lang": "python"}),
            ("search.grep", {"pattern": "(", "path": path}),
        ):
            await tool_service.post("call", agent=CODER, tool=tool, params=params)
    assert len(tool_service.seen) == 56
    assert not [text for text in tool_service.seen if root in text]


@requirement("AT-DISP-17")
async def test_a_slow_tool_holds_up_nobody(tool_service: ToolServiceLab) -> None:
    command = "while [ ! -e go ]; do sleep 0.05; done; echo gone"
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        slow = group.create_task(tool_service.call("shell.bash", command=command))
        answer = await tool_service.call("file.read", path="src/main.py")
        assert "needle" in answer["content"]
        assert not slow.done()
        (tool_service.root / "go").write_text("", encoding="utf-8")
    assert slow.result()["stdout"] == "gone\n"


async def test_outcomes_are_streamed(tool_service: ToolServiceLab) -> None:
    hub = tool_service.inside.daemon.services.hub
    before = hub.latest
    await tool_service.call("file.read", path="src/main.py")
    await tool_service.refusal("file.read", path="../x")
    told = [json.loads(one.text) for one in hub._ring if one.seq > before and one.topic == "tool"]
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
        answer = await inside.client.post("/api/v1/projects", json={"root": str(root)})
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
    assert own["latency_sum_ms"] > 0
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
