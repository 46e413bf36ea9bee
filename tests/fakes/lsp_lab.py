"""`LspLab`: a project with a language-server bridge, a planned server, and dispatch in front."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.stocked_cache import stocked
from fakes.tool_lab import ToolLab
from kaged.base import Clock, JsonObject, JsonValue, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.lsp import LspBridge, ServerStopReason, lsp_tools
from kaged.tools import Tool
from kaged.workspace import Workspace

PATIENCE_S = 15.0
FAKE = Path(__file__).parents[1] / "guests" / "fake_lsp_server.py"

ALL_CAPABILITIES: JsonObject = {
    "textDocumentSync": 1,
    "definitionProvider": True,
    "typeDefinitionProvider": True,
    "implementationProvider": True,
    "referencesProvider": True,
    "hoverProvider": True,
    "documentSymbolProvider": True,
    "workspaceSymbolProvider": True,
    "renameProvider": {"prepareProvider": True},
    "codeActionProvider": True,
    "diagnosticProvider": {"interFileDependencies": True, "workspaceDiagnostics": False},
}


class LspLab:
    """One project in `root`, its bridge, and a planned server for every language of `commands`."""

    def __init__(
        self,
        folder: Path,
        *,
        commands: dict[str, tuple[str, ...]] | None = None,
        clock: Clock | None = None,
        limit_s: float = 15.0,
        idle_s: float = 600.0,
        tools: tuple[Tool, ...] = (),
        environ: dict[str, str] | None = None,
    ) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self.plan_file = folder / "plan.json"
        self.log_file = folder / "log.jsonl"
        self.events: list[tuple[str, JsonObject]] = []
        self.clock = clock or SystemClock()
        cache = folder / "cache"
        cache.mkdir(mode=0o755)
        self.spawner = Spawner(CageSettings(cache_dir=stocked(cache)))
        self.workspace = Workspace(self.root)
        self.bridge = LspBridge(
            self.workspace,
            commands or {"python": self.fake_command()},
            self.spawner,
            clock=self.clock,
            emit=lambda name, data: self.events.append((name, data)),
            environ=dict(os.environ) if environ is None else environ,
            limit_s=limit_s,
            idle_s=idle_s,
        )
        self._tools = tools
        self.plan(capabilities=ALL_CAPABILITIES)
        self.tool_lab = self.tool_lab_for()

    def fake_command(self) -> tuple[str, ...]:
        """Return the command of a planned server."""
        return (sys.executable, str(FAKE), str(self.plan_file), str(self.log_file))

    def tool_lab_for(
        self, policy: CagePolicy | None = None, session_id: str = "ses_1", caller: str = "primary"
    ) -> ToolLab:
        """Return a dispatcher for another caller of the same project."""
        return ToolLab(
            self.root,
            (*lsp_tools(lambda _: self.bridge), *self._tools),
            policy,
            caller,
            workspace=self.workspace,
            session_id=session_id,
        )

    async def lsp(self, action: str, **params: JsonValue) -> Any:
        """Call `code.lsp` as the uncaged root agent."""
        return await self.tool_lab.call("code.lsp", action=action, **params)

    def write(self, path: str, text: str) -> Path:
        """Put a file into the project, past the tools."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def plan(self, **entries: Any) -> None:
        """Change what the planned server does from its next message on."""
        known = json.loads(self.plan_file.read_text("utf-8")) if self.plan_file.exists() else {}
        draft = self.plan_file.with_suffix(".new")
        draft.write_text(json.dumps({**known, **entries}), encoding="utf-8")
        draft.replace(self.plan_file)

    def answer(self, method: str, what: Any) -> None:
        """Let the planned server answer a method so."""
        known = json.loads(self.plan_file.read_text("utf-8")).get("answers", {})
        self.plan(answers={**known, method: what})

    def received(self, *methods: str) -> list[dict[str, Any]]:
        """Return what the servers have received so far, of some methods or all."""
        if not self.log_file.exists():
            return []
        lines = map(json.loads, self.log_file.read_text("utf-8").splitlines())
        return [one for one in lines if not methods or one.get("method") in methods]

    def methods(self) -> list[str]:
        """Return the methods that the servers have received so far."""
        return [one["method"] for one in self.received() if "method" in one]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something has happened in another process."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - processes outside have no event to await
                await asyncio.sleep(0.02)

    def uri(self, path: str) -> str:
        """Return the URI of a file of the project."""
        return (self.root / path).resolve().as_uri()

    async def close(self) -> None:
        """End the servers."""
        await self.bridge.close(ServerStopReason.DAEMON)
        await self.spawner.close()


def span(line: int, start: int, end: int, end_line: int | None = None) -> JsonObject:
    """Write a range as the protocol has it."""
    return {
        "start": {"line": line, "character": start},
        "end": {"line": line if end_line is None else end_line, "character": end},
    }


__all__ = ["ALL_CAPABILITIES", "LspLab", "span"]
