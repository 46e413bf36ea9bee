"""What an agent sees of a debugged program: places, frames, variables, within its cage."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Final, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.realpath import real_path
from kaged.toolbox.dap.breakpoints import SourceBreakpoint
from kaged.toolbox.dap.bridge import DapBridge
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.session import DebugSession, ended
from kaged.toolbox.dap.state import State
from kaged.tools import ToolInvocation
from kaged.workspace import PathRefused, ProjectPath

PREVIEW_CHARS: Final = 500
PREVIEW_FILE_BYTES: Final = 4 * 1024 * 1024
_REASONS: Final = {
    "function breakpoint": "breakpoint",
    "data breakpoint": "breakpoint",
    "instruction breakpoint": "breakpoint",
    "goto": "step",
}


@dataclass(slots=True)
class View:
    """One call, and a session's state as its caller sees it."""

    call: ToolInvocation
    bridge: DapBridge
    session: DebugSession = field(init=False)

    @property
    def args(self) -> JsonObject:
        """The parameters of the call."""
        return self.call.args

    # -- files -----------------------------------------------------------------------------------

    def project_path(self, path: str) -> ProjectPath | None:
        """Return a path of the adapter's as one of the project's; None when it lies outside."""
        workspace = self.call.workspace
        try:
            return workspace.resolve(workspace.relative_of(real_path(path)))
        except (PathRefused, OSError):
            return None

    def shown_path(self, path: str) -> str:
        """Return a file's shown name: project-relative inside; outside, bare for caged callers."""
        found = self.project_path(path)
        if found is not None:
            return found.relative
        return os.path.basename(path) if self.call.policy is not None else path  # noqa: PTH119 - a text

    async def place(self, frame: JsonObject) -> JsonObject:
        """Describe where a frame is, with the source line if the caller may see it."""
        path, line = path_of(frame), _int(frame.get("line"), 1)
        where: JsonObject = {
            "path": None if path is None else self.shown_path(path),
            "line": line,
            "column": max(_int(frame.get("column"), 1) - 1, 0),
        }
        found = None if path is None else self.project_path(path)
        if found is not None and self.call.readable(found.resolved):
            preview = await self._line(found, line)
            if preview is not None:
                where["source_preview"] = preview
        return where

    async def _line(self, path: ProjectPath, line: int) -> str | None:
        workspace = self.call.workspace
        try:
            content = await workspace.threads.run(
                lambda: workspace.read_bytes(path, PREVIEW_FILE_BYTES)
            )
        except (KagedError, OSError):
            return None
        lines = content.data.decode("utf-8-sig", errors="replace").splitlines()
        return lines[line - 1].rstrip()[:PREVIEW_CHARS] if 1 <= line <= len(lines) else None

    # -- the state -------------------------------------------------------------------------------

    async def state(self) -> JsonObject:
        """Describe what the program is doing now, as steps and continue return it."""
        session = self.session
        result: JsonObject
        if session.state is State.STOPPED and session.stop is not None:
            result = await self._stopped()
        elif session.state is State.EXITED:
            result = {"status": "exited", "exit_code": session.exit_code}
        elif session.state is State.ENDED:
            raise ended()
        else:
            result = {"status": "running"}
        output = session.output.take()
        if output:
            result["output"] = output
        return result

    async def _stopped(self) -> JsonObject:
        session = self.session
        stop = session.require_stopped()
        try:
            frames = await session.frames.top(stop.thread_id, 1, session.ask)
        except DapRequestFailed:
            frames = []  # before the first statement some debuggers have no stack to show
        reason = _REASONS.get(stop.reason, stop.reason)
        result: JsonObject = {"status": "stopped", "stopped_reason": reason}
        frame = frames[0] if frames else {}
        path, line = path_of(frame), _int(frame.get("line"), 0)
        hit = session.breakpoints.hit(stop.body, _real(path), line)
        if hit is not None and (reason == "breakpoint" or "hitBreakpointIds" in stop.body):
            result |= {"stopped_reason": "breakpoint", "breakpoint_id": hit.id}
            if isinstance(hit, SourceBreakpoint):
                self.bridge.hit(session, hit.id, hit.shown, hit.actual_line or hit.line)
            else:
                self.bridge.hit(session, hit.id, self.shown_path(path or ""), line)
        if frames:
            result["location"] = await self.place(frame)
        text = stop.body.get("text")
        if isinstance(text, str) and text:
            result["text"] = text[:PREVIEW_CHARS]
        return result

    async def threads(self) -> list[JsonValue]:
        """List the program's threads."""
        listed = objects_in((await self.session.ask("threads")).get("threads"))
        return [{"id": one.get("id"), "name": str(one.get("name", ""))} for one in listed]

    async def thread_id(self, asked: JsonValue) -> int:
        """Return which thread is meant: the one asked for, the stopped one, or the first."""
        if type(asked) is int:
            return asked
        if self.session.stop is not None:
            return self.session.stop.thread_id
        threads = await self.threads()
        first = cast("JsonObject", threads[0]) if threads else {}
        return _int(first.get("id"), 1)


def path_of(frame: JsonObject) -> str | None:
    """Return the file of a frame; None for code that has none."""
    source = frame.get("source")
    path = source.get("path") if isinstance(source, dict) else None
    return path if isinstance(path, str) and path.startswith("/") else None


def objects_in(value: JsonValue) -> list[JsonObject]:
    """Return the objects of a list; nothing of what is none."""
    found = value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, dict)]


def _real(path: str | None) -> str | None:
    try:
        return None if path is None else real_path(path)
    except OSError:
        return path


def _int(value: JsonValue, default: int) -> int:
    return value if type(value) is int else default
