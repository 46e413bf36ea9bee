"""Who carries out a call, what a project's own words may start, and what file sync is told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import FAKE as FAKE_ADAPTER
from fakes.lsp_lab import ALL_CAPABILITIES, FAKE
from fakes.running_daemon import InProcess, daemon_in_process, make_project
from fakes.stocked_cache import stocked
from kaged.base import Ids, SystemClock, Tasks
from kaged.cage import CageSettings, Spawner
from kaged.kernel.policy import CagePolicy
from kaged.sessions.agent_tools import AgentToolService
from kaged.toolbox.dap import BUILTIN, DapBridge
from kaged.toolbox.files import file_tools
from kaged.toolbox.lsp import LspBridge
from kaged.tools.permissions import ToolPermissions
from kaged.tools.registry import ToolRegistry
from kaged.workspace import Workspace
from requirements import requirement

NAMES = ("file.*", "edit.*", "search.*", "code.*", "debug", "shell.*")
ALL = json.dumps({name: {"enabled": True} for name in NAMES})
PROJECT = f"""\
project: sample
primary:
  model: m
  system_prompt: p
  tools: {ALL}
  subagents:
    globs:
      model: m
      system_prompt: p
      tools: {ALL}
      cage:
        fs: [{{mode: rw, path: ./work}}, {{mode: ro, path: './src/*.py'}},
             {{mode: ro, path: './app/[id]'}}]
        capabilities: [shell]
"""
GLOBS = "primary.subagents.globs"


class Stage:
    """A daemon with one project and a planned language server for Python."""

    def __init__(self, inside: InProcess, folder: Path, root: Path) -> None:
        self.inside = inside
        self.folder = folder
        self.root = root
        self.id = ""

    async def load(self, text: str = PROJECT, *, trust: bool = True) -> None:
        make_project(self.root, text)
        answer = await self.inside.client.post(
            "/api/v1/projects", json={"root": str(self.root), "trust": trust}
        )
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["id"]

    async def trust(self) -> None:
        answer = await self.inside.client.put(
            f"/api/v1/projects/{self.id}/trust", json={"trusted": True}
        )
        assert answer.status_code == 200, answer.text

    async def answer(self, tool: str, agent: str, params: dict[str, Any]) -> Any:
        answer = await self.inside.client.post(
            f"/api/v1/projects/{self.id}/tools/call",
            json={"agent": agent, "tool": tool, "params": params},
        )
        return answer.status_code, answer.json()

    async def call(self, tool: str, agent: str = "primary", **params: Any) -> Any:
        status, body = await self.answer(tool, agent, params)
        assert status == 200, body
        return body["result"]

    async def code(self, tool: str, agent: str = "primary", **params: Any) -> str:
        status, body = await self.answer(tool, agent, params)
        return "ok" if status == 200 else str(body["error"]["code"])

    def received(self, method: str) -> list[dict[str, Any]]:
        log = self.folder / "log.jsonl"
        lines = log.read_text("utf-8").splitlines() if log.exists() else []
        return [one for one in map(json.loads, lines) if one.get("method") == method]

    async def events(self, name: str) -> list[dict[str, Any]]:
        await self.inside.daemon.services.audit.flush()
        answer = await self.inside.client.get("/api/v1/audit", params={"event": name})
        return answer.json()["items"]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    tmp_path.chmod(0o755)
    plan = {"capabilities": ALL_CAPABILITIES}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    server = [sys.executable, str(FAKE), str(tmp_path / "plan.json"), str(tmp_path / "log.jsonl")]
    config = (
        f'[daemon]\nbind = "127.0.0.1:0"\n[lsp.servers.python]\ncommand = {json.dumps(server)}\n'
    )
    root = tmp_path / "project"
    root.mkdir(mode=0o755)
    async with daemon_in_process(tmp_path / "home", config=config) as inside:
        yield Stage(inside, tmp_path, root)


@requirement("AT-EAST-23", "AT-AMB-46")
async def test_each_file_that_a_rewrite_changed_is_on_record_and_told_to_the_server(
    stage: Stage,
) -> None:
    for name in ("a", "b", "c"):
        (stage.root / f"{name}.py").write_text("old(1)\nold(2)\n" if name != "c" else "x = 1\n")
    await stage.load()
    for name in ("a", "b", "c"):
        await stage.call("code.lsp", action="diagnostics", path=f"./{name}.py")
    await stage.call(
        "edit.ast", rewrites={"old($A)": "new($A)"}, lang="python", path=".", dry_run=False
    )
    rows = {one["data"]["path"]: one["data"]["replacements"] for one in await stage.events(
        "file.edited")}  # fmt: skip
    assert rows == {"./a.py": 2, "./b.py": 2}
    async with asyncio.timeout(20):
        while len(stage.received("textDocument/didChange")) < 2:
            # The server is told before its next question at the latest.
            await stage.call("code.lsp", action="diagnostics", path="./c.py")
    changed = [one["params"]["textDocument"]["uri"].rpartition("/")[2]
               for one in stage.received("textDocument/didChange")]  # fmt: skip
    assert sorted(changed) == ["a.py", "b.py"]


@requirement("AT-DISP-05")
async def test_only_the_owner_of_a_tool_carries_out_the_call(stage: Stage) -> None:
    tool_service = stage.inside.daemon.services.subsystems.tools
    assert isinstance(tool_service, AgentToolService)
    ran: list[tuple[str, str]] = []
    owners = {
        "file": "kaged.toolbox.files", "edit": "kaged.toolbox.files",
        "search": "kaged.toolbox.search", "code": "kaged.toolbox.lsp",
        "debug": "kaged.toolbox.dap", "shell": "kaged.toolbox.shell",
        "kaged": "kaged.toolbox.project",
    }  # fmt: skip

    def spied(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def spy(call: Any) -> Any:
            ran.append((name, _home(handler)))
            return await handler(call)

        return spy

    for entry in tool_service.registry.list():
        # Frozen for everybody else; this daemon's tools are its own.
        object.__setattr__(entry.tool, "handler", spied(entry.name, entry.tool.handler))
    (stage.root / "a.py").write_text("old(1)\n")
    await stage.load()
    calls: dict[str, dict[str, Any]] = {
        "file.read": {"path": "a.py"},
        "edit.text": {"path": "a.py", "old_string": "1", "new_string": "2"},
        "edit.ast": {"rewrites": {"old($A)": "new($A)"}, "lang": "python", "path": "."},
        "search.grep": {"pattern": "old"},
        "search.ast": {"pattern": "old($A)", "lang": "python"},
        "code.lsp": {"action": "status"},
        "debug": {"action": "list_breakpoints"},
        "shell.bash": {"command": "true"},
        "kaged.issue": {"action": "list"},
    }
    for name, params in calls.items():
        ran.clear()
        await stage.code(name, **params)
        asked = name.partition(".")[0]
        ast = name in {"edit.ast", "search.ast"}
        owner = "kaged.toolbox.ast" if ast else owners[asked]
        assert [(one, home.startswith(owner)) for one, home in ran] == [(name, True)], (name, ran)


def _home(handler: Any) -> str:
    inner = getattr(handler, "__self__", None)
    return str(getattr(handler, "__module__", None) or type(inner or handler).__module__)


@requirement("AT-DSL-21")
async def test_commands_of_a_project_file_run_only_when_the_project_is_trusted(
    stage: Stage,
) -> None:
    proof = stage.folder / "ran"
    server = ["/bin/sh", "-c", f"echo lsp >> {proof}; exec cat"]
    adapter = ["/bin/sh", "-c", f"echo dap >> {proof}; exec {sys.executable} {FAKE_ADAPTER} x y"]
    text = (
        f"{PROJECT}lsp:\n  servers:\n    - lang: toml\n      command: {json.dumps(server)}\n"
        f"dap:\n  adapters:\n    - {{runtime: own, type: own, command: {json.dumps(adapter)}}}\n"
    )
    (stage.root / "a.toml").write_text("x = 1\n")
    await stage.load(text, trust=False)
    launch = {"action": "launch", "runtime": "own", "script": "./a.toml"}
    assert await stage.code("code.lsp", action="symbols", path="./a.toml") != "ok"
    assert await stage.code("debug", **launch) != "ok"
    assert not proof.exists()
    await stage.trust()
    await stage.code("debug", **launch)
    assert "dap" in proof.read_text("utf-8")
    tasks = Tasks("test", lambda _name, _error: None)
    tasks.start(stage.code("code.lsp", action="symbols", path="./a.toml"), "ask")
    async with asyncio.timeout(20):
        while "lsp" not in proof.read_text("utf-8"):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
    await tasks.close()


@requirement("AT-DSL-06")
async def test_globs_of_a_cage_mean_the_same_to_the_dispatcher_and_inside(stage: Stage) -> None:
    for name in ("src/a.py", "src/a.txt", "src/deep/b.py", "app/[id]/page", "app/i/page"):
        path = stage.root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.write_text(f"text of {name}\n", encoding="utf-8")
    (stage.root / "work").mkdir(mode=0o777)
    (stage.root / "work").chmod(0o777)
    await stage.load()
    granted = {"src/a.py", "app/[id]/page"}
    for name in ("src/a.py", "src/a.txt", "src/deep/b.py", "app/[id]/page", "app/i/page"):
        wanted = "ok" if name in granted else "capability_denied"
        assert await stage.code("file.read", GLOBS, path=name) == wanted, name
    find = "cd .. && find src app -type f | sort"
    inside = await stage.call("shell.bash", GLOBS, cwd="work", command=find)
    seen = {line.strip() for line in inside["stdout"].splitlines()}
    assert seen == granted


@requirement("AT-REG-28")
def test_each_of_the_five_parts_can_be_made_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    spawner = Spawner(CageSettings(cache_dir=stocked(tmp_path / "cache")))
    registry = ToolRegistry()
    assert registry.names() == ()
    assert {one.definition.name for one in file_tools()} == {
        "file.read", "file.write", "file.create", "edit.text",
    }  # fmt: skip
    bridge = LspBridge(
        workspace, {}, spawner, clock=SystemClock(), emit=lambda _n, _d: None, environ={}
    )
    assert bridge is not None
    debugger = DapBridge(
        str(tmp_path), BUILTIN, spawner, None, ids=Ids(SystemClock()),
        emit=lambda _n, _d: None, environ=dict(os.environ), changeable=lambda _path: False,
    )  # fmt: skip
    assert debugger is not None
    permissions = ToolPermissions()
    assert permissions.compiled(None) is None
    assert permissions.compiled(CagePolicy()) is not None
