"""What the operator sets about tools in `config.toml` holds in a running daemon."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, make_project
from kaged.sessions.agent_tools import AgentToolService
from kaged.toolset import builtin_tools
from kaged.toolset.language_services import LanguageServices
from requirements import requirement

CODER = "primary.subagents.coder"
ALL = "{'file.*': {enabled: true}, 'search.*': {enabled: true}, 'shell.*': {enabled: true}}"
PROJECT = f"""\
project: sample
primary:
  model: m
  system_prompt: p
  tools: {ALL}
  subagents:
    coder:
      model: m
      system_prompt: p
      cage: {{fs: [{{mode: rw, path: ./}}], capabilities: [shell]}}
      tools: {ALL}
    reader:
      model: m
      system_prompt: p
      cage: {{fs: [{{mode: rw, path: ./}}]}}
      tools: {ALL}
"""


class Stage:
    """A daemon with one project, and calls as its agents."""

    def __init__(self, inside: InProcess, root: Path, project_id: str) -> None:
        self.inside, self.root, self.id = inside, root, project_id
        tool_service = inside.daemon.services.subsystems.tools
        assert isinstance(tool_service, AgentToolService)
        self.tool_service = tool_service

    async def ask(self, tool: str, agent: str = "primary", **params: Any) -> dict[str, Any]:
        url = f"/api/v1/projects/{self.id}/tools/call"
        body = {"agent": agent, "tool": tool, "params": params}
        return (await self.inside.client.post(url, json=body)).json()

    async def call(self, tool: str, agent: str = "primary", **params: Any) -> Any:
        answer = await self.ask(tool, agent, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def refusal(self, tool: str, agent: str = "primary", **params: Any) -> str:
        answer = await self.ask(tool, agent, **params)
        return answer["error"]["code"]


@asynccontextmanager
async def stage(tmp_path: Path, config: str) -> AsyncGenerator[Stage]:
    root = make_project(tmp_path / "project", PROJECT)
    whole = f'[daemon]\nbind = "127.0.0.1:0"\n{config}\n'
    async with daemon_in_process(tmp_path / "home", config=whole) as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201, answer.text
        yield Stage(inside, root, answer.json()["id"])


@requirement("AT-BEY-09")
async def test_the_operator_sets_the_limits_of_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    search_tools, ast_tools = builtin_tools.search_tools, builtin_tools.ast_tools

    def searching(engine: Any, settings: Any, **rest: Any) -> Any:
        seen["search"] = settings.time_s
        return search_tools(engine, settings, **rest)

    def parsing(engine: Any, finder: Any, settings: Any, **rest: Any) -> Any:
        seen["ast"] = (settings.time_s, settings.output_bytes)
        return ast_tools(engine, finder, settings, **rest)

    monkeypatch.setattr(builtin_tools, "search_tools", searching)
    monkeypatch.setattr(builtin_tools, "ast_tools", parsing)
    config = """\
[tools.limits]
search_seconds = 7
search_output_kb = 16
glob_files = 2
shell_seconds = 1
shell_output_kb = 64
file_wait_seconds = 0.2
[lsp]
request_timeout_seconds = 9
idle_timeout_seconds = 11
[dap]
wait_seconds = 13
"""
    async with stage(tmp_path, config) as tool_service:
        assert seen == {"search": 7, "ast": (7, 16 * 1024)}
        for name in "abc":
            (tool_service.root / f"{name}.txt").write_text(
                f"{'needle ' * 20}\n" * 400, encoding="utf-8"
            )
        assert len((await tool_service.call("search.glob", pattern="*.txt"))["files"]) == 2
        found = await tool_service.call("search.grep", pattern="needle", output_mode="content")
        assert found["truncated"]
        assert 8 * 1024 < len(str(found["matches"])) < 24 * 1024
        loud = await tool_service.call("shell.bash", command="yes | head -c 300000")
        assert loud["truncated"]
        assert loud["stdout"].endswith("\n[output truncated — 64 KB limit]")
        assert len(loud["stdout"]) < 66 * 1024
        slow = await tool_service.call("shell.bash", command="sleep 600", timeout=500_000)
        assert (slow["timed_out"], slow["exit_code"]) == (True, 137)
        workspace = tool_service.tool_service.workspace_of(tool_service.id)
        path = workspace.resolve("a.txt")
        async with workspace.locks.mutating([path]), asyncio.timeout(60):
            assert await tool_service.refusal("file.read", path="a.txt") == "file_busy"
        bridges = tool_service.inside.daemon.services.subsystems.code
        assert isinstance(bridges, LanguageServices)
        assert bridges.get_bridges_for_project(str(tool_service.root)).lsp.limit_s == 9


@pytest.mark.parametrize(
    "limits", ["search_seconds = 0", "glob_files = 100000", "shell_output_kb = 1", "serch = 1"]
)
async def test_limits_beyond_safe_bounds_are_refused(tmp_path: Path, limits: str) -> None:
    """A number that is too large or small stops the start; an unknown key is only warned about."""
    if "serch" in limits:
        async with stage(tmp_path, f"[tools.limits]\n{limits}"):
            return
    with pytest.raises(Exception, match=limits.split(maxsplit=1)[0]):
        async with stage(tmp_path, f"[tools.limits]\n{limits}"):
            pass


@requirement("AT-BEY-11")
async def test_further_shells_run_programs_when_they_are_enabled(tmp_path: Path) -> None:
    words = ["python", *(["node"] if shutil.which("node") else [])]
    async with stage(tmp_path, f"[tools]\nshells = {words}") as tool_service:
        names = ("shell.bash", "shell.jobs", *(f"shell.{word}" for word in sorted(words)))
        assert set(tool_service.tool_service.registry.names("shell")) == set(names)
        code = "import sys\nprint('it is', \"$HOME\", 6 * 7)\nsys.exit(3)"
        for agent in ("primary", CODER):
            ran = await tool_service.call("shell.python", agent, code=code)
            assert (ran["stdout"], ran["exit_code"]) == ("it is $HOME 42\n", 3)
            ran = await tool_service.call(
                "shell.python", agent, code="open('new.txt', 'w').write('x')"
            )
            assert ran["exit_code"] == 0
            (tool_service.root / "new.txt").unlink()
        if "node" in words:
            ran = await tool_service.call(
                "shell.node", code="console.log([1, 2].map(n => n * 2).join())"
            )
            assert (ran["stdout"], ran["exit_code"]) == ("2,4\n", 0)
        reader = "primary.subagents.reader"
        assert await tool_service.refusal("shell.python", reader, code="1") == "capability_denied"
        assert (
            await tool_service.refusal("shell.python", CODER, code="1", cwd="../x")
            == "invalid_params"
        )
        assert await tool_service.refusal("shell.python", code="  ") == "invalid_params"
        assert await tool_service.refusal("shell.python", command="ls") == "invalid_params"
        rows = await tool_service.inside.client.get(
            "/api/v1/audit", params={"event": "shell.executed"}
        )
        assert rows.json()["items"]


async def test_without_a_word_of_the_operator_there_is_one_shell(tmp_path: Path) -> None:
    async with stage(tmp_path, "") as tool_service:
        assert tool_service.tool_service.registry.names("shell") == ("shell.bash", "shell.jobs")
        assert await tool_service.refusal("shell.python", code="1") == "tool_not_found"


async def test_variables_that_the_operator_names_stay_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "hush")
    monkeypatch.setenv("MY_CITY", "Oslo")
    async with stage(tmp_path, '[tools]\nscrub_env = ["*_TOKEN"]') as tool_service:
        ran = await tool_service.call("shell.bash", command="env")
        assert "hush" not in ran["stdout"]
        assert "MY_CITY=Oslo" in ran["stdout"]


async def test_hard_links_are_refused_to_caged_agents_when_the_operator_says_so(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, "[tools]\nrefuse_hard_links = true") as tool_service:
        outside = tmp_path / "outside.txt"
        outside.write_text("needle\n", encoding="utf-8")
        (tool_service.root / "twin.txt").hardlink_to(outside)
        (tool_service.root / "own.txt").write_text("needle\n", encoding="utf-8")
        assert (
            await tool_service.refusal("file.read", CODER, path="twin.txt") == "capability_denied"
        )
        await tool_service.call("file.read", "primary", path="twin.txt")
        found = await tool_service.call(
            "search.grep", CODER, pattern="needle", output_mode="content"
        )
        shown = {one["file"]: one.get("content") for one in found["matches"]}
        assert shown == {"./own.txt": "needle", "./twin.txt": None}


@pytest.mark.parametrize("word", ["true", "false"])
async def test_edits_are_diagnosed_when_the_operator_says_so(tmp_path: Path, word: str) -> None:
    async with stage(tmp_path, f"[tools]\ndiagnose_edits = {word}") as tool_service:
        promised = {
            entry.name
            for entry in tool_service.tool_service.registry.list()
            if "diagnostics" in str(entry.definition.returns.get("properties"))
        }
        changing = {"edit.ast", "edit.text", "file.create", "file.write"}
        assert changing & promised == (changing if word == "true" else set())
        await tool_service.call("file.create", path="a.py", content="x = 1\n")
