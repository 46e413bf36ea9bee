"""Projects with a language server or debug adapter that does what a test's plan says.

The programs are `tests/guests/fake_lsp_server.py` and `fake_dap_adapter.py`: the standard library
and nothing else. The project names them in its own file, and the operator trusts the project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from whole.harness.project import Project

GUESTS = Path(__file__).parents[2] / "guests"
ALL_CAPABILITIES: dict[str, Any] = {
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


def trust(project: Project) -> None:
    """Let the commands that the project's files name count."""
    project.daemon.ask("PUT", f"/projects/{project.id}/trust", {"trusted": True})


def span(line: int, start: int, end: int) -> dict[str, Any]:
    """Return a range on one line, as the protocol has it."""
    return {
        "start": {"line": line, "character": start},
        "end": {"line": line, "character": end},
    }


class Planned:
    """A program beside a project that follows a plan and writes down what it is told."""

    def __init__(self, project: Project, guest: str, **entries: Any) -> None:
        self.project = project
        folder = project.root.with_name(project.root.name + "-plan")
        folder.mkdir(exist_ok=True)
        self.plan_file = folder / "plan.json"
        self.log_file = folder / "log.jsonl"
        self.command = [
            sys.executable,
            str(GUESTS / guest),
            str(self.plan_file),
            str(self.log_file),
        ]
        self.plan(**entries)

    def plan(self, **entries: Any) -> None:
        """Change what the program does from its next message on."""
        known = json.loads(self.plan_file.read_text("utf-8")) if self.plan_file.exists() else {}
        draft = self.plan_file.with_suffix(".new")
        draft.write_text(json.dumps({**known, **entries}), encoding="utf-8")
        draft.replace(self.plan_file)

    def answer(self, method: str, what: Any) -> None:
        """Let the program answer a method so."""
        known = json.loads(self.plan_file.read_text("utf-8")).get("answers", {})
        self.plan(answers={**known, method: what})

    def received(self, *methods: str) -> list[dict[str, Any]]:
        """Return what the program was told so far, of some methods or all."""
        if not self.log_file.exists():
            return []
        text = self.log_file.read_text("utf-8")
        lines = [json.loads(one) for one in text.splitlines() if one.endswith("}")]
        return [
            one for one in lines if not methods or one.get("method", one.get("command")) in methods
        ]

    def methods(self) -> list[str]:
        """Return the methods that the program was told so far."""
        return [str(one["method"]) for one in self.received() if "method" in one]

    def uri(self, path: str) -> str:
        """Return the URI of a file of the project."""
        return (self.project.root / path).as_uri()

    def place(self, path: str, line: int, start: int = 0, end: int = 1) -> dict[str, Any]:
        """Return a location of the protocol."""
        return {"uri": self.uri(path), "range": span(line, start, end)}


class PlannedServer(Planned):
    """A planned language server for the project's Python files."""

    def __init__(self, project: Project, *extra: str, **primary: Any) -> None:
        super().__init__(project, "fake_lsp_server.py", capabilities=ALL_CAPABILITIES)
        self.extra = extra
        self.describe(**primary)
        trust(project)

    def describe(self, **primary: Any) -> None:
        """Write the project file, with this server for Python, and load it."""
        servers = [{"lang": "python", "command": [*self.command, *self.extra]}]
        primary.setdefault("cage", "disabled")
        self.project.describe(top={"lsp": {"servers": servers}}, **primary)
        self.project.reload()

    def ask(self, action: str, agent: str = "primary", /, **params: Any) -> Any:
        """Call `code.lsp`; it has to work."""
        return self.project.call("code.lsp", agent, action=action, **params)

    def refusal(self, action: str, agent: str = "primary", /, **params: Any) -> dict[str, Any]:
        """Call `code.lsp`; it has to fail."""
        return self.project.fail("code.lsp", agent, action=action, **params)

    def status(self) -> dict[str, Any]:
        """Return what `status` tells of the server."""
        [found] = [one for one in self.ask("status")["servers"] if one["language"] == "python"]
        return dict(found)


DAP_CAPABILITIES: dict[str, Any] = {
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


def stopped(reason: str, thread: int = 7, **more: Any) -> dict[str, Any]:
    """Return a `stopped` event."""
    return {"event": "stopped", "body": {"reason": reason, "threadId": thread, **more}}


class Debugger:
    """The `debug` tool of one agent of a project."""

    def __init__(self, project: Project, agent: str = "primary") -> None:
        self.project = project
        self.agent = agent

    def do(self, action: str, /, **params: Any) -> Any:
        """Call `debug`; it has to work."""
        return self.project.call("debug", self.agent, action=action, **params)

    def refusal(self, action: str, /, **params: Any) -> dict[str, Any]:
        """Call `debug`; it has to fail."""
        return self.project.fail("debug", self.agent, action=action, **params)


class PlannedAdapter(Planned, Debugger):
    """A planned debug adapter for the runtime `fake`, used by the primary."""

    def __init__(self, project: Project, **primary: Any) -> None:
        Debugger.__init__(self, project)
        Planned.__init__(
            self, project, "fake_dap_adapter.py", capabilities=DAP_CAPABILITIES, events={}
        )
        fake = {"runtime": "fake", "type": "fake", "adapter": self.command}
        adapters = [{**fake, "requires_ptrace": False}]
        primary.setdefault("cage", "disabled")
        project.describe(top={"dap": {"adapters": adapters}}, **primary)
        project.reload()
        trust(project)
        project.write("main.fake", "line one\nline two\nline three\n")

    def after(self, command: str, *events: Any) -> None:
        """Let the adapter send events after it answered a command."""
        known = json.loads(self.plan_file.read_text("utf-8")).get("events", {})
        self.plan(events={**known, command: list(events)})

    def commands(self) -> list[str]:
        """Return the commands that the adapters were told so far."""
        return [str(one["command"]) for one in self.received() if one["type"] == "request"]

    def launched(self, **params: Any) -> Any:
        """Launch a program, stopped on entry."""
        self.after("configurationDone", stopped("entry"))
        return self.do("launch", **{"runtime": "fake", "script": "./main.fake", **params})

    def frame(self, number: int, name: str, line: int, path: str = "main.fake") -> dict[str, Any]:
        """Return a frame of the protocol, in a file of the project."""
        source = {"path": str(self.project.root / path)}
        return {"id": 9000 + number, "name": name, "line": line, "column": 5, "source": source}

    def stack(self, *frames: Any) -> None:
        """Let the program stand here."""
        body = {"stackFrames": list(frames), "totalFrames": len(frames)}
        self.answer("stackTrace", {"body": body})
