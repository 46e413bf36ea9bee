"""`HttpHost`: a real daemon with real cages, whose plugins a test installs and uses over HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from fakes.plugin_lab import BASE_MANIFEST, STUB
from fakes.running_daemon import ANY_PORT, InProcess, daemon_in_process, make_project

PATIENCE_S = 30.0
PAUSE_S = 0.01


def write_stub(
    directory: Path, behaviour: Mapping[str, Any] | None = None, **manifest: Any
) -> Path:
    """Write a stub plugin's directory; `behaviour` is told in tests/guests/stub_plugin.py."""
    data = {**BASE_MANIFEST, **manifest}
    wanted = dict(behaviour or {})
    answer = {"name": data["name"], "version": data["version"], "methods": data["methods"]}
    wanted["answer"] = {**answer, **wanted.get("answer", {})}
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(STUB, directory / "main.py")
    (directory / "behaviour.json").write_text(json.dumps(wanted), encoding="utf-8")
    (directory / "kaged-plugin.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return directory


def write_project(root: Path, primary: Mapping[str, Any]) -> Path:
    """Write a project whose primary agent is like this."""
    spec = {"model": "m", "system_prompt": "x", **primary}
    text = yaml.safe_dump({"version": 1, "project": root.name, "primary": spec}, sort_keys=False)
    return make_project(root, text)


class HttpHost:
    """The daemon's plugin routes, with what a test asks for in one word each."""

    def __init__(self, inside: InProcess) -> None:
        self.inside = inside
        self.client = inside.client

    async def ask(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        """Send one request and check the status of the answer."""
        async with asyncio.timeout(PATIENCE_S):
            answer = await self.client.request(method, f"/api/v1{path}", json=body)
        assert answer.status_code == expect, (path, answer.status_code, answer.text)
        return answer.json()

    async def get(self, path: str, expect: int = 200) -> Any:
        return await self.ask("GET", path, expect=expect)

    async def post(self, path: str, body: Any = None, expect: int = 200) -> Any:
        return await self.ask("POST", path, body, expect)

    async def install(self, directory: Path) -> Any:
        """Look at a plugin and install exactly that."""
        shown = await self.post("/plugins/preview", {"path": str(directory)})
        body = {"path": str(directory), "digest": shown["digest"]}
        return await self.post("/plugins", body, expect=201)

    async def running(self, directory: Path) -> Any:
        """Install and enable a plugin, and see that it runs."""
        name = (await self.install(directory))["name"]
        state = await self.post(f"/plugins/{name}/enable")
        assert state["state"] == "running", state
        return state

    async def until(self, name: str, there: Callable[[Any], bool]) -> Any:
        """Return what is shown of a plugin as soon as it is like this.

        A process that ended by itself is noticed, and started again, in a moment of its own.
        """
        async with asyncio.timeout(PATIENCE_S):
            while not there(state := await self.get(f"/plugins/{name}")):  # noqa: ASYNC110 - a process
                await asyncio.sleep(PAUSE_S)
        return state

    async def call(
        self, plugin: str, method: str = "a.b", *, expect: int = 200, **params: Any
    ) -> Any:
        answer = await self.post(f"/plugins/{plugin}/call/{method}", params, expect)
        return answer["result"] if expect == 200 else answer["error"]

    async def load(self, root: Path) -> Any:
        return await self.post("/projects", {"root": str(root), "trust": True}, expect=201)

    async def consents(self) -> list[Any]:
        return (await self.get("/consents"))["items"]

    async def events(self, *names: str) -> list[Any]:
        """Return the audit rows of these names, oldest first."""
        await self.inside.daemon.services.audit.flush()
        query = "&".join(f"event={name}" for name in names)
        return (await self.get(f"/audit?limit=200&{query}"))["items"][::-1]

    async def settle(self) -> None:
        """Wait until every plugin knows of every project that was loaded so far."""
        async with asyncio.timeout(PATIENCE_S):
            plugins: Any = self.inside.daemon.services.subsystems.plugins
            await plugins.projects.asked()
            await plugins.projects.settled()


@asynccontextmanager
async def http_host(home: Path, config: str = ANY_PORT) -> AsyncGenerator[HttpHost]:
    """Run a daemon on a home; what it kept is there again the next time."""
    async with daemon_in_process(home, config=config) as inside:
        host = HttpHost(inside)
        await host.settle()
        yield host


__all__ = ["HttpHost", "http_host", "write_project", "write_stub"]
