"""`no_sandbox`: agents lose their cages, everybody is told, and plugins keep theirs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.running_daemon import InProcess, daemon_in_process, make_project

PROJECT = """\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  subagents:
    coder:
      model: default
      system_prompt: You write.
      cage: {fs: [{mode: rw, path: ./src}], capabilities: [shell]}
      tools: {'shell.*': {enabled: true}, 'file.*': {enabled: true}}
"""
CONFIG = '[daemon]\nbind = "127.0.0.1:0"\n'
CODER = "primary.subagents.coder"


class Stage:
    """A daemon with one project, and calls as its caged agent."""

    def __init__(self, inside: InProcess, base: str) -> None:
        self.inside = inside
        self.base = base

    async def call(self, tool: str, **params: Any) -> tuple[int, Any]:
        answer = await self.inside.client.post(
            f"{self.base}/tools/call", json={"agent": CODER, "tool": tool, "params": params}
        )
        return answer.status_code, answer.json()

    async def get(self, path: str) -> Any:
        answer = await self.inside.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def daemon(folder: Path, more: str) -> AsyncGenerator[Stage]:
    root = make_project(folder / "project", PROJECT)
    (root / "src").mkdir(exist_ok=True)
    (root / "secret.txt").write_text("hidden\n", encoding="utf-8")
    async with daemon_in_process(folder / "home", config=CONFIG + more) as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201, answer.text
        yield Stage(inside, f"/api/v1/projects/{answer.json()['id']}")


MOUNTS = "readlink /proc/self/ns/mnt"


async def test_without_a_word_a_caged_agent_stays_in_its_cage(tmp_path: Path) -> None:
    async with daemon(tmp_path, "") as stage:
        status, body = await stage.call("shell.bash", command=MOUNTS, cwd="./src")
        assert status == 200, body
        assert body["result"]["stdout"].strip() != str(Path("/proc/self/ns/mnt").readlink())
        status, body = await stage.call("file.read", path="./secret.txt")
        assert (status, body["error"]["code"]) == (403, "capability_denied")
        rows = {one["id"]: one for one in (await stage.get("/api/v1/doctor"))["rows"]}
        assert rows["agent cages"]["status"] == "ok"
        assert not [one for one in (await stage.get("/api/v1/status"))["warnings"] if "SAND" in one]


async def test_no_sandbox_takes_the_cages_off_and_says_so_loudly(tmp_path: Path) -> None:
    async with daemon(tmp_path, "[sandbox]\nno_sandbox = true\n") as stage:
        status, body = await stage.call("shell.bash", command=MOUNTS, cwd="./src")
        assert status == 200, body
        assert body["result"]["stdout"].strip() == str(Path("/proc/self/ns/mnt").readlink())
        status, body = await stage.call("file.read", path="./secret.txt")
        assert status == 200, body
        tools = await stage.get(f"{stage.base}/tools?agent={CODER}")
        assert tools["cage"] == "uncaged"
        rows = {one["id"]: one for one in (await stage.get("/api/v1/doctor"))["rows"]}
        assert rows["agent cages"]["status"] == "warn"
        assert "OFF" in rows["agent cages"]["cause"]
        warnings = (await stage.get("/api/v1/status"))["warnings"]
        assert [one for one in warnings if "NO SANDBOX" in one]
