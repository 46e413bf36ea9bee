"""Agents of a project as a test writes them, and conversations with them by HTTP."""

from __future__ import annotations

from typing import Any

from whole.harness.daemon import wait_for
from whole.harness.project import Project

ON = {"enabled": True}
OFF = {"enabled": False}
DONE = ("completed", "failed", "cancelled", "interrupted")


def path_of(*keys: str) -> str:
    """Return the path of a subagent: `path_of("coder", "linter")`."""
    return ".".join(["primary", *(f"subagents.{key}" for key in keys)])


def agent(*tools: str, **more: Any) -> dict[str, Any]:
    """Return a subagent's part of the project file, with these tools or globs enabled."""
    said: dict[str, Any] = {"model": "default", "system_prompt": "You help.", **more}
    if tools:
        said["tools"] = {**dict.fromkeys(tools, ON), **said.get("tools", {})}
    return said


def caged(*mounts: str, **more: Any) -> dict[str, Any]:
    """Return a cage with mounts written as `ro:./src`."""
    pairs = [one.split(":", 1) for one in mounts]
    return {"fs": [{"mode": mode, "path": path} for mode, path in pairs], **more}


def tools_of(project: Project, who: str = "primary") -> list[dict[str, Any]]:
    """Return what the daemon tells about the tools of an agent."""
    return list(project.get(f"/tools?agent={who}")["tools"])


def names_of(project: Project, who: str = "primary") -> list[str]:
    """Return the names of an agent's tools, in the order in which they are told."""
    return [one["name"] for one in tools_of(project, who)]


def rows_of(project: Project, *events: str) -> list[dict[str, Any]]:
    """Return the audit rows of these events that are about the project, oldest first."""
    return project.daemon.audit(*events, project_id=project.id)


class Talk:
    """A session of a project in which a test says something and waits for the end of the run."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.id = str(project.post("/sessions", {})["id"])

    def begin(self, text: str, **more: Any) -> str:
        """Start a run with these words; returns its id without waiting for its end."""
        got = self.project.post(f"/sessions/{self.id}/message", {"text": text, **more})
        return str(got["run_id"])

    def say(self, text: str, **more: Any) -> dict[str, Any]:
        """Start a run with these words and wait until it has ended; returns it."""
        return self.ended(self.begin(text, **more))

    def ended(self, run_id: str) -> dict[str, Any]:
        """Wait until a run has ended."""

        def look() -> dict[str, Any] | None:
            runs = self.project.get(f"/sessions/{self.id}/runs")["items"]
            found = [one for one in runs if one["id"] == run_id and one["status"] in DONE]
            return found[0] if found else None

        return wait_for(look, f"the end of {run_id}") or {}

    def calls(self) -> list[dict[str, Any]]:
        """Return the tool calls of the session, oldest first."""
        return list(self.project.get(f"/sessions/{self.id}/tool-calls")["items"])
