"""`protect_kaged`: agents cannot change the file that defines their cages."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, make_project
from requirements import requirement

CODER = "primary.subagents.coder"
TRUSTED = "primary.subagents.trusted"
ALL = "{'file.*': {enabled: true}, 'edit.*': {enabled: true}, 'shell.*': {enabled: true}}"
PROJECT = f"""\
project: sample
primary: &agent
  model: m
  system_prompt: p
  tools: {ALL}
  subagents:
    coder:
      model: m
      system_prompt: p
      cage: {{fs: [{{mode: rw, path: ./}}], capabilities: [shell]}}
      tools: {ALL}
    trusted:
      model: m
      system_prompt: p
      cage: {{fs: [{{mode: rw, path: ./}}, {{mode: rw, path: ./.kaged}}]}}
      tools: {ALL}
""".replace(" &agent", "")


class Stage:
    """A daemon with one project, and calls as its agents."""

    def __init__(self, inside: InProcess, root: Path, project_id: str) -> None:
        self.inside, self.root, self.id = inside, root, project_id
        self.file = root / ".kaged" / "project.yaml"

    async def post(self, what: str, tool: str, agent: str, **params: Any) -> dict[str, Any]:
        url = f"/api/v1/projects/{self.id}/tools/{what}"
        body = {"agent": agent, "tool": tool, "params": params}
        return (await self.inside.client.post(url, json=body)).json()

    async def call(self, tool: str, agent: str = "primary", **params: Any) -> Any:
        answer = await self.post("call", tool, agent, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def refused(self, tool: str, agent: str = "primary", **params: Any) -> dict[str, Any]:
        answer = await self.post("call", tool, agent, **params)
        assert answer["error"]["code"] == "capability_denied", answer
        assert self.file.read_text(encoding="utf-8") == PROJECT
        return answer["error"]

    async def attempts(self, agent: str) -> None:
        """Try every way of the file tools to the project file."""
        (self.root / "link").symlink_to(self.file)
        (self.root / "folder").symlink_to(self.file.parent)
        paths = (".kaged/project.yaml", "./.kaged/../.kaged/project.yaml", "link")
        for path in (*paths, "folder/project.yaml", str(self.file)):
            await self.call("file.read", agent, path=path)
            await self.refused("file.write", agent, path=path, content="x")
            await self.refused(
                "edit.text", agent, path=path, old_string="coder", new_string="other"
            )
        await self.refused("file.create", agent, path=".kaged/agents.yaml", content="x")
        await self.refused("file.create", agent, path="folder/new/agents.yaml", content="x")
        await self.refused(
            "edit.ast",
            agent,
            rewrites={"model: m": "model: x"},
            lang="yaml",
            path=".kaged/project.yaml",
            dry_run=False,
        )
        assert [one.name for one in self.file.parent.iterdir()] == ["project.yaml"]


@asynccontextmanager
async def stage(tmp_path: Path, tools: str = "") -> AsyncGenerator[Stage]:
    root = make_project(tmp_path / "project", PROJECT)
    config = f'[daemon]\nbind = "127.0.0.1:0"\n[tools]\n{tools}\n'
    async with daemon_in_process(tmp_path / "home", config=config) as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201, answer.text
        yield Stage(inside, root, answer.json()["id"])


@requirement("AT-BEY-19")
async def test_a_caged_agent_cannot_change_its_own_cage(tmp_path: Path) -> None:
    async with stage(tmp_path) as tool_service:
        await tool_service.attempts(CODER)
        await tool_service.call("file.write", CODER, path="src/a.py", content="x")
        error = await tool_service.refused(
            "file.write", CODER, path=".kaged/project.yaml", content="x"
        )
        assert error["data"]["detail"] == "rw:fs:.kaged/project.yaml"
        said = await tool_service.post(
            "explain", "file.write", CODER, path=".kaged/project.yaml", content="x"
        )
        assert not said["allowed"]
        assert "ro:./.kaged" in said["cage"]["fs"]
        rows = await tool_service.inside.client.get(
            "/api/v1/audit", params={"event": "tool.denied"}
        )
        assert rows.json()["items"]


@pytest.mark.parametrize(
    "command",
    [
        "echo x >> .kaged/project.yaml",
        "rm .kaged/project.yaml",
        "mv .kaged old && mkdir .kaged && echo x > .kaged/project.yaml",
        "echo x > new && mv new .kaged/project.yaml",
        "ln .kaged/project.yaml twin && echo x >> twin",
        "ln -sfn /tmp .kaged",
        "chmod 777 .kaged/project.yaml && echo x >> .kaged/project.yaml",
        "touch .kaged/agents.yaml",
    ],
)
async def test_commands_of_a_caged_agent_cannot_either(tmp_path: Path, command: str) -> None:
    async with stage(tmp_path) as tool_service:
        ran = await tool_service.call("shell.bash", CODER, command=f"{command}; true")
        assert tool_service.file.read_text(encoding="utf-8") == PROJECT, ran
        assert [one.name for one in tool_service.file.parent.iterdir()] == ["project.yaml"]
        await tool_service.call("shell.bash", CODER, command="echo y > free.txt")
        assert (tool_service.root / "free.txt").read_text(encoding="utf-8") == "y\n"


async def test_an_entry_that_names_the_folder_and_no_cage_at_all_are_the_operators_word(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as tool_service:
        for agent in (TRUSTED, "primary"):
            path = f".kaged/{agent}.md"
            await tool_service.call("file.create", agent, path=path, content="x")
            assert (tool_service.root / path).read_text(encoding="utf-8") == "x"


@requirement("AT-BEY-19")
async def test_with_all_no_agent_can_and_the_daemon_still_can(tmp_path: Path) -> None:
    async with stage(tmp_path, 'protect_kaged = "all"') as tool_service:
        await tool_service.attempts("primary")
        await tool_service.refused("file.create", "primary", path=".KAGED/agents.yaml", content="x")
        await tool_service.refused("file.create", TRUSTED, path=".kaged/agents.yaml", content="x")
        said = await tool_service.post(
            "explain", "file.create", "primary", path=".kaged/x", content="x"
        )
        (closed,) = [gate for gate in said["gates"] if gate["passed"] is False]
        assert (closed["rule"], closed["detail"]) == ("tool.sealed", "rw:fs:.kaged/x")
        assert "protect_kaged" in closed["remedy"]
        os.link(tool_service.file, tool_service.root / "twin")
        await tool_service.call("file.read", path="twin")
        await tool_service.call("file.write", path="twin", content="x")
        assert tool_service.file.read_text(encoding="utf-8") == PROJECT
        answer = await tool_service.inside.client.post(
            f"/api/v1/projects/{tool_service.id}/reload", json={"trust": True}
        )
        assert answer.status_code == 200, answer.text


async def test_switched_off_a_grant_of_the_project_is_a_grant_of_all_of_it(tmp_path: Path) -> None:
    async with stage(tmp_path, 'protect_kaged = "off"') as tool_service:
        await tool_service.call("file.create", CODER, path=".kaged/agents.yaml", content="x")
        await tool_service.call("shell.bash", CODER, command="echo y >> .kaged/agents.yaml")
        text = (tool_service.root / ".kaged" / "agents.yaml").read_text(encoding="utf-8")
        assert text == "xy\n"
