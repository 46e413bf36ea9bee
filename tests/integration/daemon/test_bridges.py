"""The daemon's bridges: made when needed, told of everything, ended in the right order."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.lsp_lab import ALL_CAPABILITIES, FAKE
from fakes.running_daemon import InProcess, daemon_in_process, environment, make_home, make_project
from kaged.app.wiring import build
from kaged.base import ManualClock, SystemClock
from kaged.config import Locations
from kaged.diagnostics.gates import Gates
from kaged.toolbox.dap import BUILTIN
from kaged.toolbox.lsp import LspBridge
from kaged.toolbox.shell import PtyBroker
from kaged.toolset import language_services
from kaged.toolset.language_services import LanguageServices
from kaged.workspace import Workspace
from requirements import requirement

BUILT_IN = {
    "file.read", "file.write", "file.create", "edit.text", "edit.ast", "search.grep",
    "search.glob", "search.ast", "code.lsp", "debug", "shell.bash", "kaged.checkpoint",
    "kaged.issue", "kaged.todo", "kaged.upload", "shell.jobs", "web.fetch",
    "kaged.ask", "kaged.form", "kaged.workflow.list",
    "kaged.workflow.trigger", "kaged.workflow.status",
}  # fmt: skip


NAMES = ("file.*", "edit.*", "code.*", "debug", "shell.*")
ALL = json.dumps({name: {"enabled": True} for name in NAMES})
PROJECT = f"""\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  tools: {ALL}
  subagents:
    reader:
      model: default
      system_prompt: You read.
      cage: {{fs: [{{mode: ro, path: .}}]}}
      tools: {ALL}
"""


class Stage:
    """A daemon with projects and a planned language server for Python."""

    def __init__(self, inside: InProcess, folder: Path) -> None:
        self.inside = inside
        self.folder = folder
        self.plan = folder / "plan.json"
        self.log = folder / "log.jsonl"

    @property
    def bridges(self) -> LanguageServices:
        found = self.inside.daemon.services.subsystems.code
        assert isinstance(found, LanguageServices)
        return found

    async def load(self, name: str = "one", text: str = PROJECT, *, trust: bool = True) -> str:
        root = make_project(self.folder / name, text)
        (root / "a.py").write_text("ERR\n", encoding="utf-8")
        answer = await self.inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": trust}
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def call(self, project: str, tool: str, agent: str = "primary", **params: Any) -> Any:
        answer = await self.inside.client.post(
            f"/api/v1/projects/{project}/tools/call",
            json={"agent": agent, "tool": tool, "params": params},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    async def servers(self, project: str) -> dict[str, Any]:
        answer = await self.inside.client.get(f"/api/v1/projects/{project}/lsp")
        assert answer.status_code == 200, answer.text
        return {one["language"]: one for one in answer.json()["servers"]}

    async def pid(self, project: str) -> int | None:
        return (await self.servers(project))["python"]["pid"]

    def received(self, method: str) -> list[dict[str, Any]]:
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return [one for one in map(json.loads, lines) if one.get("method") == method]

    async def events(self, name: str) -> list[dict[str, Any]]:
        answer = await self.inside.client.get("/api/v1/audit", params={"event": name})
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]


def config(folder: Path) -> str:
    command = [sys.executable, str(FAKE), str(folder / "plan.json"), str(folder / "log.jsonl")]
    return (
        '[daemon]\nbind = "127.0.0.1:0"\n[lsp]\nidle_timeout_seconds = 60\n'
        f"[lsp.servers.python]\ncommand = {json.dumps(command)}\n"
    )


def write_plan(folder: Path) -> None:
    plan = {"capabilities": ALL_CAPABILITIES}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    write_plan(tmp_path)
    async with daemon_in_process(
        tmp_path / "home", config=config(tmp_path), clock=SystemClock()
    ) as inside:
        yield Stage(inside, tmp_path)


async def gone(pid: int | None) -> None:
    assert pid is not None
    async with asyncio.timeout(15):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110 - a process has no event to await
            await asyncio.sleep(0.02)


@requirement("AT-REG-08", "AT-AMB-44")
async def test_a_daemon_has_exactly_the_built_in_tools(stage: Stage) -> None:
    tool_service: Any = stage.inside.daemon.services.subsystems.tools

    def built_in() -> set[str]:
        return {one.name for one in tool_service.registry.list() if one.source == "builtin"}

    assert built_in() == BUILT_IN
    await stage.call(await stage.load(), "file.read", path="./a.py")
    assert built_in() == BUILT_IN
    # Those of skills are an owner's own, for agents that have skills.
    assert set(tool_service.registry.names()) - BUILT_IN == {"skill.load", "skill.run"}


@requirement("AT-LSP-10")
async def test_each_root_has_one_pair_of_bridges_that_is_made_when_asked_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def making(workspace: Workspace, *args: Any, **rest: Any) -> LspBridge:
        made.append(workspace.root)
        return LspBridge(workspace, *args, **rest)

    monkeypatch.setattr(language_services, "LspBridge", making)
    await stage.load("one")
    await stage.load("two")
    bridges = stage.bridges
    assert made == []
    first = bridges.get_bridges_for_project(str(stage.folder / "one"))
    again = bridges.get_bridges_for_project(str(stage.folder / "one"))
    other = bridges.get_bridges_for_project(str(stage.folder / "two"))
    assert first.lsp is again.lsp
    assert first.dap is again.dap
    assert other.lsp is not first.lsp
    assert other.dap is not first.dap
    assert made == [str(stage.folder / name) for name in ("one", "two")]


@requirement("AT-LSP-04", "AT-AUD-06")
async def test_the_agents_of_a_project_share_a_server_and_projects_do_not(stage: Stage) -> None:
    one, two = await stage.load("one"), await stage.load("two")
    reader = "primary.subagents.reader"
    async with asyncio.TaskGroup() as group:
        for agent in ("primary", reader, "primary"):
            group.create_task(
                stage.call(one, "code.lsp", agent, action="diagnostics", path="./a.py")
            )
    await stage.call(two, "code.lsp", action="diagnostics", path="./a.py")
    spawned = await stage.events("code.lsp.server_spawned")
    assert {row["project_id"] for row in spawned} == {one, two}
    assert len(spawned) == 2
    assert {row["data"]["project_id"] for row in spawned} == {one, two}
    assert {row["data"]["language"] for row in spawned} == {"python"}
    assert all(row["data"]["command"][0] == sys.executable for row in spawned)


@requirement("AT-SYNC-03")
async def test_files_read_before_the_first_question_are_known_to_the_server(stage: Stage) -> None:
    project = await stage.load()
    (stage.folder / "one" / "b.py").write_text("b = 1\n", encoding="utf-8")
    await stage.call(project, "file.read", path="./a.py")
    await stage.call(project, "code.lsp", action="diagnostics", path="./b.py")
    opened = [
        one["params"]["textDocument"]["uri"] for one in stage.received("textDocument/didOpen")
    ]
    assert [one.rpartition("/")[2] for one in opened] == ["a.py", "b.py"]


@requirement("AT-LSP-08", "AT-AUD-08")
async def test_unloading_a_project_ends_its_servers_and_no_others(stage: Stage) -> None:
    one, two = await stage.load("one"), await stage.load("two")
    for project in (one, two):
        await stage.call(project, "code.lsp", action="diagnostics", path="./a.py")
    first, second = await stage.pid(one), await stage.pid(two)
    answer = await stage.inside.client.delete(f"/api/v1/projects/{one}")
    assert answer.status_code in {200, 204}
    await gone(first)
    assert Path(f"/proc/{second}").exists()
    async with asyncio.timeout(15):
        while not (stopped := await stage.events("code.lsp.server_stopped")):  # noqa: ASYNC110 - written behind
            await asyncio.sleep(0.02)
    assert [(row["project_id"], row["data"]["reason"]) for row in stopped] == [
        (one, "project_unload")
    ]


@requirement("AT-LSP-07")
async def test_a_server_that_nobody_asks_is_stopped_after_the_configured_time(
    tmp_path: Path,
) -> None:
    write_plan(tmp_path)
    clock = ManualClock()
    async with daemon_in_process(tmp_path / "home", config=config(tmp_path), clock=clock) as inside:
        stage = Stage(inside, tmp_path)
        project = await stage.load()
        await stage.call(project, "code.lsp", action="diagnostics", path="./a.py")
        pid = await stage.pid(project)
        clock.advance(59)
        await stage.bridges.sweep()
        assert await stage.pid(project) == pid
        clock.advance(2)
        await stage.bridges.sweep()
        await gone(pid)
        assert (await stage.servers(project))["python"]["state"] == "stopped"
        await stage.call(project, "code.lsp", action="diagnostics", path="./a.py")
        assert await stage.pid(project) not in {None, pid}


@requirement("AT-LSP-12")
async def test_a_projects_own_server_counts_once_the_project_is_trusted(stage: Stage) -> None:
    own = [sys.executable, str(FAKE), str(stage.plan), str(stage.folder / "own.jsonl")]
    text = f"{PROJECT}lsp:\n  servers:\n    - lang: python\n      command: {json.dumps(own)}\n"
    project = await stage.load("one")
    await stage.call(project, "code.lsp", action="diagnostics", path="./a.py")
    assert await stage.load("one", text, trust=False) == project
    assert (await stage.servers(project))["python"]["configured_by"] == "config.toml"
    assert (await stage.servers(project))["go"]["configured_by"] == "built in"
    assert (await stage.servers(project))["go"]["command"] == ["gopls"]
    before = await stage.pid(project)
    answer = await stage.inside.client.put(
        f"/api/v1/projects/{project}/trust", json={"trusted": True}
    )
    assert answer.status_code == 200
    assert (await stage.servers(project))["python"]["configured_by"] == "project"
    await stage.call(project, "code.lsp", action="diagnostics", path="./a.py")
    argv = Path(f"/proc/{await stage.pid(project)}/cmdline").read_bytes().split(b"\0")[:-1]
    assert [os.fsdecode(one) for one in argv] == own
    await gone(before)
    opened = (stage.folder / "own.jsonl").read_text("utf-8")
    assert "a.py" in opened


@requirement("AT-LSP-11")
async def test_at_the_end_bridges_go_after_the_http_server_and_before_the_terminals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path)
    home = make_home(tmp_path / "home", config(tmp_path))
    environ = environment(home)
    order: list[str] = []

    def spy(kind: type, name: str, word: str) -> None:
        real: Callable[..., Any] = getattr(kind, name)

        async def spied(self: object) -> None:
            order.append(word)
            await real(self)

        monkeypatch.setattr(kind, name, spied)

    spy(LanguageServices, "close", "bridges")
    spy(PtyBroker, "dispose_all", "terminals")
    async with AsyncExitStack() as closing:
        daemon = await build(
            Locations.from_env(environ),
            environ,
            clock=SystemClock(),
            gates=Gates(),
            closing=closing,
        )
        serving = daemon.tasks.start(daemon.server.serve(list(daemon.sockets)), "http")
        await daemon.server.listening.wait()
        await daemon.startup.open()
        path = str(daemon.sockets[0].getsockname())
        over = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=over, base_url="http://kaged") as client:
            assert (await client.get("/api/v1/status")).is_success  # it serves until it is stopped
        serving.add_done_callback(lambda _: order.append("http"))
        daemon.services.hub.close()
        daemon.server.stop()
        await serving
    assert order == ["http", "bridges", "terminals"]


@requirement("AT-LSP-08", "AT-AUD-08")
async def test_when_the_daemon_ends_no_server_is_left(tmp_path: Path) -> None:
    write_plan(tmp_path)
    async with daemon_in_process(tmp_path / "home", config=config(tmp_path)) as inside:
        stage = Stage(inside, tmp_path)
        project = await stage.load()
        await stage.call(project, "code.lsp", action="diagnostics", path="./a.py")
        pid = await stage.pid(project)
    await gone(pid)
    async with daemon_in_process(tmp_path / "home", config=config(tmp_path)) as inside:
        stopped = await Stage(inside, tmp_path).events("code.lsp.server_stopped")
        assert [row["data"]["reason"] for row in stopped] == ["daemon_shutdown"]


async def test_a_debug_session_ends_with_the_run_that_began_it(stage: Stage) -> None:
    project = await stage.load()
    (stage.folder / "one" / "loop.py").write_text("import time\ntime.sleep(600)\n", "utf-8")
    said = await stage.call(
        project, "debug", action="launch", runtime="python", script="./loop.py", stop_on_entry=True
    )
    assert said
    # Reading the project anew begins another session and run.
    answer = await stage.inside.client.post(
        f"/api/v1/projects/{project}/reload", json={"trust": True}
    )
    assert answer.status_code == 200
    async with asyncio.timeout(30):
        while not (ended := await stage.events("debug.session_ended")):  # noqa: ASYNC110 - written behind
            await asyncio.sleep(0.02)
    assert [row["data"]["reason"] for row in ended] == ["run_ended"]


def adapter(folder: Path, level: str) -> dict[str, Any]:
    """Return a planned adapter that keeps the log of its level."""
    fake = FAKE.with_name("fake_dap_adapter.py")
    argv = [sys.executable, str(fake), str(folder / "dap.json"), str(folder / f"{level}.jsonl")]
    return {"type": level, "adapter": argv, "requires_ptrace": False}


@requirement("AT-DAP-09")
async def test_debuggers_are_the_projects_the_operators_or_the_built_in_ones(
    tmp_path: Path,
) -> None:
    write_plan(tmp_path)
    stop = {"event": "stopped", "body": {"reason": "entry", "threadId": 1}}
    plan = {"capabilities": {}, "events": {"launch": [stop]}}
    (tmp_path / "dap.json").write_text(json.dumps(plan), encoding="utf-8")
    operator = "".join(
        f"[dap.adapters.{runtime}]\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in described.items())
        for runtime, described in {
            "python": adapter(tmp_path, "operator"),
            "own": {"type": "operator", "command": ["nowhere"], "requires_ptrace": False},
        }.items()
    )
    own = [{"runtime": "python", **adapter(tmp_path, "project")}]
    text = PROJECT + f"dap: {json.dumps({'adapters': own})}\n"
    started = {"tool": "debug", "action": "launch", "script": "./a.py", "runtime": "python"}
    async with daemon_in_process(
        tmp_path / "home", config=config(tmp_path) + operator, clock=SystemClock()
    ) as inside:
        stage = Stage(inside, tmp_path)
        project = await stage.load("one")

        async def launched_types() -> dict[str, list[str]]:
            await stage.call(project, **started)
            await stage.call(project, "debug", action="disconnect")
            return {
                level: [
                    one["arguments"]["type"]
                    for one in map(json.loads, log.read_text("utf-8").splitlines())
                    if one.get("command") == "launch"
                ]
                for level in ("operator", "project")
                if (log := tmp_path / f"{level}.jsonl").exists()
            }

        assert await launched_types() == {"operator": ["operator"]}
        # Nobody has agreed to what the project names now: nothing is started.
        await stage.load("one", text, trust=False)
        refused = await inside.client.post(
            f"/api/v1/projects/{project}/tools/call",
            json={"agent": "primary", "tool": "debug", "params": {"action": "launch"}},
        )
        assert refused.is_error
        answer = await inside.client.put(
            f"/api/v1/projects/{project}/trust", json={"trusted": True}
        )
        assert answer.status_code == 200, answer.text
        assert await launched_types() == {"operator": ["operator"], "project": ["project"]}
        adapters = stage.bridges.get_bridges_for_project(str((tmp_path / "one").resolve())).dap
        assert adapters.adapters["python"].type == "project"
        assert adapters.adapters["own"].command == ("nowhere",)
        assert adapters.adapters["node"] == BUILTIN["node"]
        answer = await inside.client.post(
            f"/api/v1/projects/{project}/tools/call",
            json={
                "agent": "primary",
                "tool": "debug",
                "params": {"action": "launch", "script": "./a.py", "runtime": "own"},
            },
        )
        assert answer.json()["error"]["data"]["detail"]["command"] == ["nowhere"]
