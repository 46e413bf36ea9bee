"""MCP clients and servers that other people wrote: the official SDKs, the Inspector, servers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from httpx2 import AsyncClient
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon
from whole.harness.project import Project

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "build" / "tools"
BINARIES = TOOLS / "node_modules" / ".bin"
CLIENT = ROOT / "tests" / "guests" / "mcp_client.mjs"
TRANSPORTS = ("stdio", "http")
NODE_SERVERS = ("everything", "filesystem", "memory", "sequential-thinking")
PYTHON_SERVERS = ("git", "time")


def node_server(name: str, *arguments: str) -> list[str]:
    """Return the command of a published server that runs on Node."""
    package = TOOLS / "node_modules" / "@modelcontextprotocol" / f"server-{name}"
    return ["node", str(package / "dist" / "index.js"), *arguments]


def python_server(name: str, *arguments: str) -> list[str]:
    """Return the command of a published server that is written in Python."""
    return [sys.executable, "-m", f"mcp_server_{name}", *arguments]


def address(daemon: Daemon, project: Project, agent: str = "primary") -> str:
    """Return where an agent's tools are served over HTTP."""
    return f"{daemon.url}/api/v1/projects/{project.id}/mcp?agent={agent}"


def command(project: Project, agent: str = "primary") -> list[str]:
    """Return the command that an MCP client is configured with."""
    return [KAGED, "mcp", "--project", str(project.root), "--agent", agent]


def typescript(
    daemon: Daemon,
    project: Project,
    *requests: tuple[str, Any],
    transport: str = "stdio",
    agent: str = "primary",
) -> list[dict[str, Any]]:
    """Send requests with the official TypeScript SDK; the first answer names the server."""
    where = (
        ["stdio", *command(project, agent)]
        if transport == "stdio"
        else ["http", address(daemon, project, agent), daemon.token]
    )
    answers: list[dict[str, Any]] = _run(
        daemon, ["node", str(CLIENT), *where], json.dumps(requests)
    )
    assert len(answers) == len(requests) + 1
    return answers


def python(
    daemon: Daemon,
    project: Project,
    *requests: tuple[str, Any],
    transport: str = "stdio",
    agent: str = "primary",
) -> list[dict[str, Any]]:
    """Send the same requests with the official Python SDK; answers look as TypeScript's do."""

    async def talk() -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {daemon.token}"}
        async with AsyncClient(headers=headers, trust_env=False, timeout=PATIENCE_S) as http:
            if transport == "stdio":
                words = command(project, agent)
                where: Any = StdioServerParameters(
                    command=words[0], args=words[1:], env=dict(daemon.env)
                )
            else:
                where = streamable_http_client(address(daemon, project, agent), http_client=http)
            async with Client(where) as client:
                answers: list[dict[str, Any]] = [{"result": _plain(client.server_info)}]
                for method, given in requests:
                    call = getattr(client, _PYTHON[method])
                    try:
                        answers.append({"result": _plain(await call(**given))})
                    except MCPError as error:
                        answers.append({"error": {"code": error.code, "message": str(error)}})
        return answers

    Daemon.spoken += 1
    return asyncio.run(talk())


_PYTHON = {
    "listTools": "list_tools",
    "callTool": "call_tool",
    "getPrompt": "get_prompt",
    "readResource": "read_resource",
}


def _plain(value: Any) -> dict[str, Any]:
    """Return what the SDK read as it stood on the wire."""
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def inspector(
    daemon: Daemon, project: Project, *options: str, transport: str = "stdio"
) -> dict[str, Any]:
    """Ask with the Inspector's command line; returns what it printed, errors of tools too."""
    where = (
        [*options, "-e", f"KAGED_HOME={daemon.home}", "--", *command(project)]
        if transport == "stdio"
        else [
            *(address(daemon, project), "--transport", "http", *options),
            *("--header", f"Authorization: Bearer {daemon.token}"),
        ]
    )
    found: dict[str, Any] = _run(
        daemon, [str(BINARIES / "mcp-inspector"), "--cli", *where], codes=(0, 5)
    )
    return found


def _run(daemon: Daemon, argv: Sequence[str], stdin: str = "", codes: Sequence[int] = (0,)) -> Any:
    Daemon.spoken += 1
    env: Mapping[str, str] = {
        **daemon.env,
        "PATH": os.environ["PATH"],
        "MCP_TOOLS": str(TOOLS),
    }
    done = subprocess.run(
        argv,
        input=stdin,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in codes, (
        done.returncode,
        argv,
        done.stdout[-2000:],
        done.stderr[-2000:],
    )
    return json.loads(done.stdout)
