"""Talking to an agent: sessions and messages by HTTP, and resources by MCP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from mcp import Client, StdioServerParameters

from whole.harness.daemon import KAGED, Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.project import Project


def begin(project: Project, *, current: bool = True, **more: Any) -> str:
    """Begin a session; returns its id."""
    return str(project.post("/sessions", {"current": current, **more})["id"])


def send(project: Project, session: str, text: str, **more: Any) -> str:
    """Send a message; returns the id of the run that this starts."""
    return str(project.post(f"/sessions/{session}/message", {"text": text, **more})["run_id"])


def ended(project: Project, session: str, run: str) -> dict[str, Any]:
    """Wait for the end of a run; returns what is known about it."""

    def look() -> list[dict[str, Any]]:
        rows = project.get(f"/sessions/{session}/runs")["items"]
        return [one for one in rows if one["id"] == run and one["status"] != "running"]

    return wait_for(look, f"end of {run}")[0]


def say_to(project: Project, session: str, text: str, **more: Any) -> dict[str, Any]:
    """Send a message and wait for the end of the run; returns what is known about the run."""
    return ended(project, session, send(project, session, text, **more))


def exchange(
    project: Project, model: ModelServer, word: str, *turns: Mapping[str, Any], session: str = ""
) -> str:
    """Let a person say `word` and the model answer, in a new current session unless one is given.

    Returns the session's id.
    """
    model.play(word, *(turns or (say(f"Answer to {word}."),)))
    place = session or begin(project)
    run = say_to(project, place, word)
    assert run["status"] == "completed", run
    return place


def entries(project: Project, session: str) -> list[dict[str, Any]]:
    """Return what a session shows, header first."""
    found: list[dict[str, Any]] = project.get(f"/sessions/{session}/entries?limit=500")["items"]
    return found


def current(project: Project) -> str:
    """Return the id of the project's current session."""
    return str(project.get("/sessions/current")["id"])


def read_resource(daemon: Daemon, project: Project, uri: str) -> str:
    """Read a resource as an MCP client of the primary agent does, with the official SDK."""

    async def read() -> str:
        words = ["mcp", "--project", str(project.root), "--agent", "primary"]
        params = StdioServerParameters(command=KAGED, args=words, env=dict(daemon.env))
        async with Client(params) as client:
            return str((await client.read_resource(uri)).contents)

    Daemon.spoken += 1
    return asyncio.run(read())
