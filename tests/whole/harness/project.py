"""`Project`: a folder with a project file, as an operator writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from whole.harness.daemon import Daemon

EVERYTHING = {"fs": [{"mode": "rw", "path": "."}]}


class Project:
    """A project folder; once loaded, its tools, sessions and settings by HTTP."""

    def __init__(self, root: Path, **primary: Any) -> None:
        self.root = root
        self.id = ""
        self.daemon: Daemon
        root.mkdir(parents=True, exist_ok=True)
        self.describe(**primary)

    def describe(self, *, top: Mapping[str, Any] | None = None, **primary: Any) -> None:
        """Write the project file: the primary agent's keys, and with `top` those beside it.

        Without a word about it the agent may read and write the folder, and has all tools.
        """
        agent = {
            "model": "default",
            "system_prompt": "You help.",
            "cage": EVERYTHING,
            "tools": {"*": {"enabled": True}},
            **primary,
        }
        text = {"version": 1, "project": self.root.name, "primary": agent, **(top or {})}
        self.write(".kaged/project.yaml", yaml.safe_dump(text, sort_keys=False))

    def write(self, path: str, content: str | bytes) -> Path:
        """Write a file of the project."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def read(self, path: str) -> str:
        """Read a file of the project."""
        return (self.root / path).read_text(encoding="utf-8")

    def reload(self) -> None:
        """Let the daemon read the project's files again, and agree to what they ask for."""
        self.daemon.post(f"/projects/{self.id}/reload", {"trust": True})

    # -- by HTTP -------------------------------------------------------------------------------

    def get(self, path: str, **options: Any) -> Any:
        """GET below the project."""
        return self.daemon.get(f"/projects/{self.id}{path}", **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """POST below the project."""
        return self.daemon.post(f"/projects/{self.id}{path}", body, **options)

    def call(self, tool: str, agent: str = "primary", /, **params: Any) -> Any:
        """Call a tool with the rights of an agent; it has to work. Returns its result."""
        body = {"agent": agent, "tool": tool, "params": params}
        return self.post("/tools/call", body)["result"]

    def fail(self, tool: str, agent: str = "primary", /, **params: Any) -> dict[str, Any]:
        """Call a tool that has to fail; returns the error: `code`, `message`, `data`, `status`."""
        body = {"agent": agent, "tool": tool, "params": params}
        return self.daemon.error("POST", f"/projects/{self.id}/tools/call", body)
