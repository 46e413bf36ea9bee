"""`ServedProject`: a project with language servers of its own, and what each of them was sent.

`relayed` is a real server behind `tests/guests/lsp_relay.py`, which writes down what passes;
`planned` is `tests/guests/fake_lsp_server.py`, which does what a plan says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.project import Project

GUESTS = Path(__file__).parents[2] / "guests"
NODE_TOOLS = Path(__file__).parents[3] / "build" / "tools" / "node_modules" / ".bin"
PYRIGHT = (str(NODE_TOOLS / "pyright-langserver"), "--stdio")


class ServedProject(Project):
    """A trusted project whose servers keep their plan and log in the folder beside it."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.folder = folder
        self._servers: dict[str, list[str]] = {}
        super().__init__(folder / "project", cage="disabled")
        self.plan({})
        daemon.load(self)
        daemon.ask("PUT", f"/projects/{self.id}/trust", {"trusted": True})

    @property
    def log_file(self) -> Path:
        """Where servers write down what they are sent."""
        return self.folder / "log.jsonl"

    def relayed(self, lang: str, command: Sequence[str]) -> None:
        """Let a real server serve a language."""
        relay = [sys.executable, str(GUESTS / "lsp_relay.py"), str(self.log_file)]
        self._serve(lang, [*relay, *command])

    def planned(self, *langs: str, **plan: Any) -> None:
        """Let a planned server serve some languages."""
        self.plan(plan)
        server = [sys.executable, str(GUESTS / "fake_lsp_server.py")]
        for lang in langs:
            self._serve(lang, [*server, str(self.folder / "plan.json"), str(self.log_file)])

    def plan(self, plan: Mapping[str, Any]) -> None:
        """Change what planned servers do; they look before each message."""
        asked = {"textDocumentSync": 1, "diagnosticProvider": {"interFileDependencies": False}}
        text = json.dumps({"capabilities": asked, **plan})
        (self.folder / "plan.json").write_text(text, encoding="utf-8")

    def _serve(self, lang: str, command: list[str]) -> None:
        self._servers[lang] = command
        servers = [{"lang": name, "command": words} for name, words in self._servers.items()]
        agent = {
            "model": "default",
            "system_prompt": "You help.",
            "cage": {"fs": [{"mode": "ro", "path": "."}]},
            "tools": {"code.lsp": {"enabled": True}, "file.*": {"enabled": True}},
        }
        top = {"lsp": {"servers": servers}}
        self.describe(top=top, cage="disabled", subagents={"other": agent})
        self.reload()

    def received(self) -> list[dict[str, Any]]:
        """Return all messages, oldest first; a server that was started again goes on below."""
        if not self.log_file.exists():
            return []
        text = self.log_file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def told(self, kind: str, path: str) -> list[dict[str, Any]]:
        """Return the parameters of the notices of a kind (`didOpen`) about a file."""
        uri = (self.root / path).as_uri()
        return [
            one["params"]
            for one in self.received()
            if one.get("method") == f"textDocument/{kind}"
            and one["params"]["textDocument"]["uri"] == uri
        ]

    def lsp(self, action: str, agent: str = "primary", /, **params: Any) -> dict[str, Any]:
        """Ask the server of a language; it has to answer."""
        got: dict[str, Any] = self.call("code.lsp", agent, action=action, **params)
        return got
