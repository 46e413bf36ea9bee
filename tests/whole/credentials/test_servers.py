"""Credentials of outside MCP servers: asked for and granted by the operator, new at each start."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from whole.harness.daemon import Daemon, wait_for
from whole.harness.keys import CONFIG, LOCAL, VALUE
from whole.harness.model import ModelServer
from whole.harness.project import Project

SERVER = """
import json, os, sys
TOOL = {"name": "look", "description": "d", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    result = {}
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "look", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif asked["method"] == "tools/call":
        seen = json.dumps(dict(os.environ)) + open(os.environ.get("NETRC", os.devnull)).read()
        result = {"content": [{"type": "text", "text": seen}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def running(daemon: Daemon) -> list[str]:
    """Return the servers that run."""
    listed = daemon.get("/mcp/servers")["servers"]
    return [one["name"] for one in listed if one["state"] == "running"]


def test_a_server_has_a_placeholder_only_where_both_sides_say_so(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    guests = tmp_path / "guests"
    guests.mkdir()
    (guests / "server.py").write_text(SERVER, "utf-8")
    argv = json.dumps([sys.executable, str(guests / "server.py")])
    cage = f'cage = {{ fs = [{{ mode = "ro", path = "{guests}" }}] }}\n'
    asks = 'credentials = ["github"]\n'
    config = CONFIG.replace("for = {", 'for = { mcp = ["granted", "silent"],')
    for name, asked in (("granted", asks), ("silent", ""), ("stranger", asks)):
        config += f"[mcp.servers.{name}]\ncommand = {argv}\n{cage}{asked}"
    daemon = own(config=config, local=model.local_toml() + LOCAL, env={"GITHUB_VALUE": VALUE})
    daemon.start()
    project = daemon.load(Project(tmp_path / "elsewhere"))

    def seen(name: str) -> str:
        wait_for(lambda: name in running(daemon), name)
        return str(project.call(f"{name}.look"))

    first = seen("granted")
    assert "kgd_" in first
    assert "machine github.example login x-access-token password kgd_" in first
    assert "kgd_" not in seen("silent") + seen("stranger")
    assert VALUE not in first
    (row,) = daemon.audit("credential.not_granted")
    assert row["data"]["what"] == "mcp:stranger"
    daemon.cli("mcp", "restart", "granted")
    again = seen("granted")
    mark = first[first.index("kgd_") :][:36]
    assert "kgd_" in again
    assert mark not in again
