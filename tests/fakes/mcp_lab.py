"""MCP on both sides: a daemon that clients of the official SDK talk to, and outside servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import mcp
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from fakes.running_daemon import (
    ANY_PORT,
    KAGED,
    InProcess,
    daemon_in_process,
    environment,
    make_project,
)

GUESTS = Path(__file__).parents[1] / "guests"
ROGUE = GUESTS / "rogue_mcp_server.py"
CALCULATOR = GUESTS / "mcp_tool_server.py"
LIBRARIES = Path(mcp.__file__).parents[1]
WAIT_S = 60
PYTHON = os.path.realpath(sys.executable)

PROJECT = """\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  cage: {fs: [{mode: rw, path: .}], capabilities: [shell]}
  tools:
    file.*: {enabled: true}
    shell.*: {enabled: true}
    out.*: {enabled: true}
    calc.*: {enabled: true}
  subagents:
    reader:
      model: default
      system_prompt: You read.
      cage: {fs: [{mode: ro, path: ./docs}]}
      tools: {file.*: {enabled: true}, out.*: {enabled: true}}
"""


def rogue(
    mode: str,
    *arguments: str,
    name: str = "out",
    state: Path | None = None,
    more: str = "",
    env: str = "",
) -> str:
    """Configure the rogue server in one of its modes; `state` is a folder that it may write."""
    command = [PYTHON, str(ROGUE), mode, "-" if state is None else str(state), *arguments]
    grants = [f'{{mode = "ro", path = "{ROGUE}"}}']
    if state is not None:
        grants.append(f'{{mode = "rw", path = "{state}"}}')
    return (
        f"[mcp.servers.{name}]\ncommand = {json.dumps(command)}\n{more}\n"
        f"cage = {{ fs = [{', '.join(grants)}] }}\n{env}\n"
    )


def calculator(more: str = "") -> str:
    """Configure the server that is made with the official SDK."""
    command = json.dumps([PYTHON, str(CALCULATOR)])
    return (
        f"[mcp.servers.calc]\ncommand = {command}\n{more}\n"
        f'env = {{ PYTHONPATH = "{LIBRARIES}", CALC_KEY = "s3cret" }}\n'
        f'cage = {{ fs = [{{mode = "ro", path = "{LIBRARIES}"}}, '
        f'{{mode = "ro", path = "{CALCULATOR}"}}], limits = {{ memory_mb = 1024 }} }}\n'
    )


@dataclass(slots=True)
class McpStage:
    """A serving daemon with one loaded project."""

    inside: InProcess
    root: Path
    project_id: str

    @property
    def home(self) -> Path:
        """The daemon's home."""
        return self.inside.places.home

    @asynccontextmanager
    async def stdio(
        self, agent: str = "primary", mode: str = "auto", **options: Any
    ) -> AsyncGenerator[Client]:
        """Connect a client of the SDK through `kaged mcp`, a process of its own."""
        params = StdioServerParameters(
            command=KAGED[0],
            args=[*KAGED[1:], "mcp", "--project", self.project_id, "--agent", agent],
            env=environment(self.home),
        )
        async with Client(params, mode=mode, **options) as client:
            yield client

    @asynccontextmanager
    async def http(
        self,
        agent: str = "primary",
        mode: str = "auto",
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Client]:
        """Connect a client of the SDK over TCP, with the daemon's token."""
        token = (self.inside.places.state_dir / "http-token").read_text(encoding="utf-8").strip()
        sent = {"Authorization": f"Bearer {token}"} if headers is None else headers
        # The SDK has an HTTP library of its own, and takes any client that looks like one of it.
        maker: Any = httpx.AsyncClient
        async with maker(headers=sent, timeout=60, trust_env=False) as plain:
            transport = streamable_http_client(self.mcp_url(agent), http_client=plain)
            async with Client(transport, mode=mode, **options) as client:
                yield client

    def mcp_url(self, agent: str = "primary") -> str:
        """Return where the agent is served over HTTP."""
        return f"{self.inside.url}/api/v1/projects/{self.project_id}/mcp?agent={agent}"

    async def call(self, tool: str, params: dict[str, Any], agent: str = "primary") -> Any:
        """Call a tool as the agent, over the daemon's own API."""
        response = await self.inside.client.post(
            f"/api/v1/projects/{self.project_id}/tools/call",
            json={"agent": agent, "tool": tool, "params": params},
            timeout=60,
        )
        return response.json()

    async def server(self, name: str = "out") -> dict[str, Any]:
        """Describe an outside server."""
        return (await self.inside.client.get(f"/api/v1/mcp/servers/{name}")).json()

    async def audited(self, event: str) -> list[dict[str, Any]]:
        """Return the data of the audit events of one name."""
        found = await self.inside.client.get("/api/v1/audit", params={"event": event, "limit": 100})
        items: Sequence[dict[str, Any]] = found.json()["items"]
        return [dict(one) for one in reversed(items)]

    async def settled(self, name: str = "out", state: str = "running") -> dict[str, Any]:
        """Wait until an outside server has come to a state."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await self.server(name)
                if found.get("state") == state:
                    return found
                assert found.get("state") != "failed", found  # disabled is how each of them begins
                await asyncio.sleep(0.02)

    async def eventually(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many audit events of one name are there."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await self.audited(event)
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


def error_of(result: Any) -> dict[str, Any]:
    """Return the error of a failed call, as programs read it."""
    assert result.is_error is True
    assert result.structured_content is None, "clients check it against the output schema"
    error: dict[str, Any] = result.meta["kaged/error"]
    return error


def text_of(content: Any) -> str:
    """Return the text of a piece of content, of whichever kind the SDK made it."""
    return content.text


async def appears(path: Path) -> None:
    """Wait until there is a file."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if path.exists():
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def mcp_stage(
    folder: Path,
    config: str = "",
    project: str = PROJECT,
    *,
    serve: bool = True,
    turns: Sequence[dict[str, Any]] = (),
) -> AsyncGenerator[McpStage]:
    """Run a daemon in this process with a project that has something to read.

    `turns` are what the model of its agents plays.
    """
    root = make_project(folder / "project", project)
    (root / "docs").mkdir()
    (root / "docs" / "open.txt").write_text("hello\n", encoding="utf-8")
    (root / "secret.txt").write_text("not for the reader\n", encoding="utf-8")
    home = folder / "home"
    if turns:
        home.mkdir(mode=0o700)
        (home / "script.yaml").write_text(json.dumps({"turns": list(turns)}), encoding="utf-8")
        local = home / "local.toml"
        local.write_text('[models.default]\nmodel = "scripted:script.yaml"\n', encoding="utf-8")
        local.chmod(0o600)
    async with daemon_in_process(home, config=f"{ANY_PORT}{config}", serve=serve) as inside:
        loaded = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert loaded.status_code < 300, loaded.text
        yield McpStage(inside, root, loaded.json()["id"])


__all__ = ["McpStage", "appears", "calculator", "error_of", "mcp_stage", "rogue", "text_of"]
