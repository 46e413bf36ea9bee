"""A real daemon with the letters bridge, and agents that ask for letters from their cages."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from fakes.running_daemon import InProcess, daemon_in_process, make_project
from kaged.serve.http.connection import PeerConnection

EXAMPLE = Path(__file__).parents[2] / "plugins" / "examples" / "letters-bridge" / "bridge.py"
LETTERS = {
    "ann": ["Dear Ann, the boat leaves at nine."],
    "bob": ["Bob, bring rope."],
    "operator": ["To whom it may concern."],
}
PROJECT = """\
project: post
primary:
  model: m
  system_prompt: p
  tools: {'shell.*': {enabled: true}, 'file.*': {enabled: true}}
  cage: {fs: [{mode: rw, path: .}], capabilities: [shell, services]}
  subagents:
    outsider:
      model: m
      system_prompt: p
      cage: {fs: [{mode: rw, path: .}], capabilities: [shell]}
      tools: {'shell.*': {enabled: true}}
"""


def config(folder: Path, *, more: str = "") -> str:
    """Return a config.toml with the bridge; loopback clients are trusted front ends."""
    return (
        '[daemon]\nbind = "127.0.0.1:0"\n'
        '[auth]\ntrusted_proxies = ["127.0.0.1/32"]\n'
        "[capabilities.providers.post]\n"
        f"command = {json.dumps([sys.executable, str(EXAMPLE)])}\n"
        f"env = {{ LETTERS = {json.dumps(str(folder / 'letters.json'))} }}\n{more}"
    )


class ServiceHome:
    """The daemon, its project, and people who talk to it through a front end."""

    def __init__(self, inside: InProcess, project_id: str, token: str) -> None:
        self.inside = inside
        self.id = project_id
        self.token = token

    async def run(self, command: str, agent: str = "primary", **person: str) -> dict[str, Any]:
        """Run a command as an agent; `user`, `chat_type`, `chat_id` are what the front end says."""
        body = {"agent": agent, "tool": "shell.bash", "params": {"command": command}}
        url = f"/api/v1/projects/{self.id}/tools/call"
        if not person:
            answer = await self.inside.client.post(url, json=body, timeout=120)
        else:
            address = person.pop("address", "127.0.0.1")
            headers = {"Authorization": f"Bearer {self.token}"}
            headers |= {
                f"X-Kaged-{name.replace('_', '-')}": value for name, value in person.items()
            }
            if "X-Kaged-user" in headers:
                headers["X-Kaged-User-Id"] = headers.pop("X-Kaged-user")
            async with self.inside.over(PeerConnection("tcp", address=address)) as front_end:
                answer = await front_end.post(url, json=body, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()["result"]
        return result

    async def link(self, **person: str) -> None:
        """Link somebody's account the way an agent would, from inside the cage."""
        begun = await self.run("ash-sb capability auth begin -c post.box --json", **dict(person))
        flow_id = json.loads(begun["stdout"])["flow_id"]
        done = await self.run(
            f"ash-sb capability auth complete --flow-id {flow_id} --code agreed", **dict(person)
        )
        assert done["exit_code"] == 0, done

    async def audit(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one name, newest first."""
        answer: httpx.Response = await self.inside.client.get(
            "/api/v1/audit", params={"event": name, "limit": 100}
        )
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items


@asynccontextmanager
async def service_home(
    folder: Path, *, more: str = "", serve: bool = False
) -> AsyncGenerator[ServiceHome]:
    """Open a daemon with a project and the bridge."""
    folder.chmod(0o755)
    (folder / "letters.json").write_text(json.dumps(LETTERS), encoding="utf-8")
    (folder / "letters.json").chmod(0o600)
    root = make_project(folder / "project", PROJECT)
    home = folder / "home"
    async with daemon_in_process(home, config=config(folder, more=more), serve=serve) as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201, answer.text
        token = inside.daemon.services.credentials.token.path.read_text(encoding="utf-8").strip()
        yield ServiceHome(inside, answer.json()["id"], token)
