"""What language servers and debuggers see of the daemon's environment, as real children of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import ALL_CAPABILITIES, FAKE
from fakes.running_daemon import InProcess, daemon_in_process, make_project

PATIENCE_S = 120
PROJECT = """\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  tools: {"code.*": {"enabled": true}, "debug": {"enabled": true}}
"""
SECRETS = {
    "ASH_CONTEXT_TOKEN_SECRET": "5ec7e7" * 12,
    "ASH_CONTEXT_TOKEN": "somebody",
    "DEPLOY_TOKEN": "scrubbed-by-glob",
    "LAUNCH_CODE": "scrubbed-by-name",
    "NOTIFY_SOCKET": "/run/of-the-daemon",
}
SHOW = "import json, os\nopen('seen.json', 'w').write(json.dumps(dict(os.environ)))\n"


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcess]:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"capabilities": ALL_CAPABILITIES}), encoding="utf-8")
    command = [sys.executable, str(FAKE), str(plan), str(tmp_path / "log.jsonl")]
    config = (
        '[daemon]\nbind = "127.0.0.1:0"\n[tools]\nscrub_env = ["*_TOKEN", "LAUNCH_CODE"]\n'
        f"[lsp.servers.python]\ncommand = {json.dumps(command)}\n"
    )
    variables = {**SECRETS, "ORDINARY": "yes", "TOKEN_COUNT": "3"}
    async with daemon_in_process(tmp_path / "home", config=config, variables=variables) as made:
        yield made


async def load(inside: InProcess, root: Path) -> str:
    make_project(root, PROJECT)
    (root / "show.py").write_text(SHOW, encoding="utf-8")
    answer = await inside.client.post("/api/v1/projects", json={"root": str(root), "trust": True})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def call(inside: InProcess, project: str, tool: str, **params: Any) -> Any:
    answer = await inside.client.post(
        f"/api/v1/projects/{project}/tools/call",
        json={"agent": "primary", "tool": tool, "params": params},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def assert_ordinary_only(seen: dict[str, str]) -> None:
    assert seen["ORDINARY"] == "yes"
    assert seen["TOKEN_COUNT"] == "3"  # a glob means the whole name
    assert seen["PATH"]
    assert not [name for name in seen if name.startswith("ASH_")]
    for name, secret in SECRETS.items():
        assert name not in seen
        assert secret not in seen.values()


async def test_a_language_server_sees_no_secret_of_the_daemon(
    inside: InProcess, tmp_path: Path
) -> None:
    project = await load(inside, tmp_path / "one")
    await call(inside, project, "code.lsp", action="diagnostics", path="./show.py")
    answer = await inside.client.get(f"/api/v1/projects/{project}/lsp")
    (server,) = [one for one in answer.json()["servers"] if one["language"] == "python"]
    held = Path(f"/proc/{server['pid']}/environ").read_bytes().decode()
    assert_ordinary_only(dict(one.split("=", 1) for one in held.split("\0") if one))


async def test_a_debugged_program_sees_no_secret_of_the_daemon(
    inside: InProcess, tmp_path: Path
) -> None:
    root = tmp_path / "one"
    project = await load(inside, root)
    started = {"runtime": "python", "script": "./show.py", "stop_on_entry": False}
    await call(inside, project, "debug", action="launch", **started)
    written = root / "seen.json"
    async with asyncio.timeout(PATIENCE_S):
        while not written.exists() or not written.read_text("utf-8"):  # noqa: ASYNC110 - a process outside
            await asyncio.sleep(0.05)
    await call(inside, project, "debug", action="disconnect")
    assert_ordinary_only(json.loads(written.read_text("utf-8")))
