"""`DapLab`: a project with a debug bridge, planned adapters, and dispatch in front."""

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
from kaged.base import Ids, JsonObject, JsonValue, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.config.serverchoice import AdapterChoice
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.dap import BUILTIN, DapBridge, caged_launcher, dap_tools
from kaged.toolbox.dap.backend import CageLauncher
from kaged.toolbox.dap.session import DebugSession
from kaged.tools import ToolInvocation
from kaged.workspace import Workspace

FAKE = Path(__file__).parents[1] / "guests" / "fake_dap_adapter.py"
PATIENCE_S = 15.0

ALL_CAPABILITIES: JsonObject = {
    "supportsConfigurationDoneRequest": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
    "supportsInstructionBreakpoints": True,
    "supportsDataBreakpoints": True,
    "supportsDisassembleRequest": True,
    "supportsReadMemoryRequest": True,
    "supportsWriteMemoryRequest": True,
    "supportsModulesRequest": True,
    "supportsLoadedSourcesRequest": True,
    "supportTerminateDebuggee": True,
}


class DapLab:
    """One project in `root` and its debug bridge; runtime `fake` is a planned adapter."""

    def __init__(
        self,
        folder: Path,
        *,
        wait_s: float = 15.0,
        launcher: CageLauncher | None = None,
        uncaged_only: bool = False,
        adapters: dict[str, AdapterChoice] | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        folder.chmod(0o755)
        self.root = folder / "project"
        self.root.mkdir(mode=0o755)
        self.plan_file = folder / "plan.json"
        self.log_file = folder / "log.jsonl"
        self.events: list[tuple[str, JsonObject]] = []
        cache = folder / "cache"
        cache.mkdir(mode=0o755)
        self.spawner = Spawner(CageSettings(cache_dir=stocked(cache)))
        self.workspace = Workspace(self.root)
        own = launcher or (None if uncaged_only else caged_launcher(self.spawner))
        fake = AdapterChoice("fake", None, self.fake_command(), False)
        self.bridge = DapBridge(
            self.workspace.root,
            {**BUILTIN, "fake": fake, **(adapters or {})},
            self.spawner,
            own,
            ids=Ids(SystemClock()),
            emit=lambda name, data: self.events.append((name, data)),
            environ=dict(os.environ) if environ is None else environ,
            changeable=lambda _path: False,
            wait_s=wait_s,
        )
        self.plan(capabilities=ALL_CAPABILITIES, events={})
        self._last_call: ToolInvocation | None = None
        self.tool_lab = self.tool_lab_for()

    def fake_command(self) -> tuple[str, ...]:
        """Return the command of a planned adapter."""
        return (sys.executable, str(FAKE), str(self.plan_file), str(self.log_file))

    def tool_lab_for(
        self,
        policy: CagePolicy | None = None,
        caller: str = "primary",
        session_id: str = "ses_1",
    ) -> ToolLab:
        """Return a dispatcher for another caller of the same project."""
        tools = dap_tools(self._asked)
        return ToolLab(
            self.root, tools, policy, caller, workspace=self.workspace, session_id=session_id
        )

    def session(self) -> DebugSession:
        """Return the session of whoever used the tool last."""
        assert self._last_call is not None
        return self.bridge.session(self._last_call)

    def _asked(self, call: ToolInvocation) -> DapBridge:
        self._last_call = call
        return self.bridge

    async def debug(self, action: str, **params: JsonValue) -> Any:
        """Call `debug` as the uncaged root agent."""
        return await self.tool_lab.call("debug", action=action, **params)

    async def launched(self, **params: JsonValue) -> Any:
        """Launch a program under the planned adapter, stopped on entry."""
        self.write("main.fake", "line one\nline two\nline three\n")
        self.after("configurationDone", stopped("entry"))
        given: dict[str, JsonValue] = {"runtime": "fake", "script": "./main.fake", **params}
        return await self.debug("launch", **given)

    def write(self, path: str, text: str) -> Path:
        """Put a file into the project."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def plan(self, **entries: Any) -> None:
        """Change what the planned adapter does from its next message on."""
        known = json.loads(self.plan_file.read_text("utf-8")) if self.plan_file.exists() else {}
        draft = self.plan_file.with_suffix(".new")
        draft.write_text(json.dumps({**known, **entries}), encoding="utf-8")
        draft.replace(self.plan_file)

    def answer(self, command: str, what: Any) -> None:
        """Let the planned adapter answer a command so."""
        known = json.loads(self.plan_file.read_text("utf-8")).get("answers", {})
        self.plan(answers={**known, command: what})

    def after(self, command: str, *events: Any) -> None:
        """Let the planned adapter send events after it answered a command."""
        known = json.loads(self.plan_file.read_text("utf-8")).get("events", {})
        self.plan(events={**known, command: list(events)})

    def received(self, *commands: str) -> list[dict[str, Any]]:
        """Return what the adapters have received so far, of some commands or all."""
        if not self.log_file.exists():
            return []
        lines = map(json.loads, self.log_file.read_text("utf-8").splitlines())
        return [one for one in lines if not commands or one.get("command") in commands]

    def commands(self) -> list[str]:
        """Return the commands that the adapters have received so far."""
        return [one["command"] for one in self.received() if one["type"] == "request"]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something has happened in another process."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - processes outside have no event to await
                await asyncio.sleep(0.02)

    def adapters_running(self) -> int:
        """Count the processes that the bridge has started and not ended."""
        return len(self.spawner.running)

    async def close(self) -> None:
        """End everything."""
        await self.bridge.close()
        await self.spawner.close()


def stopped(reason: str, thread: int = 7, **more: Any) -> dict[str, Any]:
    """Write a `stopped` event."""
    return {"event": "stopped", "body": {"reason": reason, "threadId": thread, **more}}


__all__ = ["ALL_CAPABILITIES", "DapLab", "stopped"]
