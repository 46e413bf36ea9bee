"""What happens in a run, as updates of the protocol. Pure: an event in, updates out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from acp import (
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
)
from acp.schema import SessionInfoUpdate, ToolCallLocation

from kaged.cli.acp.feed import FeedEvent
from kaged.cli.output import harmless, one_line

MAX_TITLE_CHARS: Final = 120
MAX_TEXT_CHARS: Final = 20_000
MAX_DIFF_CHARS: Final = 200_000
MAX_CALLS: Final = 1_000

_KINDS: Final = {
    "file.read": "read",
    "file.write": "edit",
    "file.create": "edit",
    "edit": "edit",
    "search": "search",
    "code": "search",
    "shell": "execute",
    "debug": "execute",
    "web": "fetch",
    "kaged": "think",
}
_STATES: Final = {"completed": "completed"}
_PLAN_STATES: Final = {"in_progress": "in_progress", "done": "completed", "completed": "completed"}
_TELLING: Final = ("path", "pattern", "query", "command", "message", "title", "task", "action")
_TEXTS: Final = ("output", "stdout", "content", "markdown", "text", "diff", "summary")
TODO_TOOL: Final = "kaged.todo"


class RunUpdates:
    """Translates the events of one session. Remembers the calls that are open."""

    def __init__(self, root: Path, agent: str) -> None:
        self._root = root
        self.agent = agent
        self._open: dict[str, dict[str, Any]] = {}

    def of(self, event: FeedEvent) -> list[Any]:
        """Return what the editor is told about an event; nothing about most."""
        data = event.data
        match event.name:
            case "text.delta" if data.get("agent") == self.agent:
                return [update_agent_message_text(str(data.get("text", "")))]
            case "thinking.delta" if data.get("agent") == self.agent:
                return [update_agent_thought_text(str(data.get("text", "")))]
            case "model.retried" if data.get("agent") == self.agent:
                # What was streamed cannot be taken back in this protocol; so say what it was.
                reason = one_line(data.get("reason"))
                return [update_agent_thought_text(f"\n(The model is asked again: {reason})\n")]
            case "tool.started":
                return [self._started(data)]
            case "tool.updated":
                return self._progress(data)
            case "tool.finished":
                return self._finished(data)
            case "session.titled":
                title = str(data.get("title") or "")
                return [SessionInfoUpdate(session_update="session_info_update", title=title)]
            case _:
                return []

    def _started(self, data: dict[str, Any]) -> Any:
        call_id = str(data["request_id"])
        params = data.get("params")
        params = params if isinstance(params, dict) else {}
        if len(self._open) < MAX_CALLS:
            self._open[call_id] = params
        return start_tool_call(
            call_id,
            self._title(data, params),
            kind=kind_of(str(data.get("tool_name"))),
            status="in_progress",
            content=call_content(self._root, str(data.get("tool_name")), params),
            locations=self._locations(params),
            raw_input=params,
        )

    def _progress(self, data: dict[str, Any]) -> list[Any]:
        text = harmless(str(data.get("text") or ""))
        if not text:
            return []
        return [update_tool_call(str(data["request_id"]), content=[_block(text)])]

    def _finished(self, data: dict[str, Any]) -> list[Any]:
        call_id = str(data["request_id"])
        params = self._open.pop(call_id, {})
        tool, result = str(data.get("tool_name")), data.get("result")
        content = call_content(self._root, tool, params)
        if data.get("error"):
            content = [_block(error_text(data["error"]))]
        elif not content:
            content = result_content(result)
        status = _STATES.get(str(data.get("status")), "failed")
        found: list[Any] = [
            update_tool_call(call_id, status=status, content=content, raw_output=result)  # type: ignore[arg-type]  # a literal of the protocol
        ]
        if tool == TODO_TOOL and isinstance(result, dict) and isinstance(result.get("todos"), list):
            found.append(plan_of(result["todos"]))
        return found

    def _title(self, data: dict[str, Any], params: dict[str, Any]) -> str:
        caller = str(data.get("caller"))
        whose = "" if caller == self.agent else f"{caller.rpartition('.')[2]}: "
        return f"{whose}{title_of(str(data.get('tool_name')), params)}"

    def _locations(self, params: dict[str, Any]) -> list[ToolCallLocation]:
        path = params.get("path")
        if not isinstance(path, str) or ":" in path:
            return []
        line = params.get("offset") or params.get("line")
        return [
            ToolCallLocation(
                path=str(self._root / path), line=line if isinstance(line, int) else None
            )
        ]


def title_of(tool: str, params: dict[str, Any]) -> str:
    """Return a call in a few words: the tool, and the parameter that says the most."""
    told = next((str(params[name]) for name in _TELLING if params.get(name)), "")
    gist = one_line(f"{tool} {told}".strip())
    return gist if len(gist) <= MAX_TITLE_CHARS else gist[: MAX_TITLE_CHARS - 1] + "…"


def kind_of(tool: str) -> Any:
    """Return which of the protocol's kinds a tool is of."""
    return _KINDS.get(tool) or _KINDS.get(tool.partition(".")[0]) or "other"


def call_content(root: Path, tool: str, params: dict[str, Any]) -> list[Any]:
    """Return what an editing call changes as a diff; nothing for other calls."""
    path = params.get("path")
    if not isinstance(path, str):
        return []
    match tool:
        case "edit.text":
            old, new = params.get("old_string"), params.get("new_string")
        case "file.write" | "file.create":
            old, new = None, params.get("content")
        case _:
            return []
    if not isinstance(new, str) or len(new) > MAX_DIFF_CHARS:
        return []
    return [tool_diff_content(str(root / path), new, old if isinstance(old, str) else None)]


def result_content(result: Any) -> list[Any]:
    """Return what a call answered as text for people."""
    if isinstance(result, dict):
        found = next((result[name] for name in _TEXTS if isinstance(result.get(name), str)), None)
        result = found if found is not None else None
    if not isinstance(result, str) or not result.strip():
        return []
    return [_block(harmless(result))]


def error_text(error: Any) -> str:
    """Return an error of a call: what happened, then what would change it."""
    if not isinstance(error, dict):
        return harmless(str(error))
    words = harmless(str(error.get("message") or error.get("code") or "The call failed."))
    data = error.get("data")
    fix = error.get("fix") or (data.get("fix") if isinstance(data, dict) else None)
    return f"{words}\nFix: {harmless(str(fix))}" if fix else words


def plan_of(todos: list[Any]) -> Any:
    """Return a todo list as a plan."""
    return update_plan(
        [
            plan_entry(
                str(one.get("content", "")),
                status=_PLAN_STATES.get(str(one.get("status")), "pending"),  # type: ignore[arg-type]  # a literal of the protocol
            )
            for one in todos
            if isinstance(one, dict)
        ]
    )


def _block(text: str) -> Any:
    cut = text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "\n…"
    return tool_content(text_block(cut))
