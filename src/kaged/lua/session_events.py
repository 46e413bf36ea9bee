"""`SessionEventForwarder`: tells scripts what happens in sessions, and asks them beforehand.

Notifications never hold a run up. Before each model call and each tool call, though, scripts are
waited for until they are done with what they were told: what one records at the end of a turn is
not overtaken by the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.lua.moves import SCRIPT_PREFIX
from kaged.lua.request_draft import read_draft
from kaged.sessions.move import MoveVeto, Redirect, SwitchIntent

if TYPE_CHECKING:
    from kaged.lua.runtime import Payload, ScriptRuntime
    from kaged.sessions.lifecycle import Lifecycle, SessionEvent
    from kaged.sessions.navigation import Navigation
    from kaged.sessions.transcript import Transcript
    from kaged.sessions.transforms import ContextDraft, Transforms

PATIENCE_S: Final = 8.0
BUSY_S: Final = 9.0  # before the loop gives up waiting, which would pass over all of them
REQUIRED_S: Final = 9.0  # before the loop gives up waiting, which would let the request pass
MAX_KNOWN: Final = 10_000
_TOP: Final = "primary"
_AS_THEY_ARE: Final = {
    "turn.started": ("turn_start", {"index": "index"}),
    "tool.started": ("tool_call", {"id": "request_id", "name": "tool_name", "input": "params"}),
    "model.selected": ("model_select", {"prev": "prev", "next": "next", "source": "source"}),
}
"""Events of sessions that scripts get with other names only."""

_log = get_logger("kaged.lua")


class SessionEventForwarder:
    """Ties the scripts of all projects to the daemon's sessions. `close` unties them."""

    def __init__(
        self,
        runtime_of: Callable[[str], ScriptRuntime | None],
        lifecycle: Lifecycle,
        navigation: Navigation,
        transcript: Transcript,
        transforms: Transforms | None,
        audit: Callable[[AuditEvent], None],
    ) -> None:
        self._runtime_of = runtime_of
        self._transcript = transcript
        self._audit = audit
        self._project_of: dict[str, str] = {}
        self._speaking: set[str] = set()
        self._undo: list[Callable[[], None]] = [lifecycle.subscribe(self._heard)]
        navigation.before_switch.append(self._before_switch)
        navigation.before_fork.append(self._before_fork)
        self._undo.append(lambda: navigation.before_switch.remove(self._before_switch))
        self._undo.append(lambda: navigation.before_fork.remove(self._before_fork))
        if transforms is not None:
            self._undo.append(transforms.on_context(self._context))
            self._undo.append(transforms.on_before_tool_call(self._before_tool_call))
            self._undo.append(transforms.on_after_turn(self._after_turn))
            self._undo.append(transforms.on_summarizing(self._summarizing))

    def close(self) -> None:
        """Listen no more."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    # -- what is about to happen ---------------------------------------------------------------

    async def _before_switch(self, intent: SwitchIntent) -> MoveVeto | Redirect | None:
        return await self._decide("session_before_switch", intent)

    async def _before_fork(self, intent: SwitchIntent) -> MoveVeto | Redirect | None:
        return await self._decide("session_before_fork", intent)

    async def _decide(self, event: str, intent: SwitchIntent) -> MoveVeto | Redirect | None:
        runtime = self._runtime_of(intent.project_id)
        if runtime is None:
            return None
        decided = await runtime.decide(event, intent.target, intent.session_id)
        if decided.cancel is not None:
            return MoveVeto(decided.cancel, f"{SCRIPT_PREFIX}{decided.by}")
        if decided.patch is not None:
            return Redirect(decided.patch, f"{SCRIPT_PREFIX}{decided.by}")
        return None

    async def _context(self, session_id: str, draft: ContextDraft) -> ContextDraft | None:
        runtime = await self._of_session(session_id)
        if runtime is None:
            return None
        async with _in_time(runtime):
            return await self._changed(runtime, session_id, draft)

    async def _changed(
        self, runtime: ScriptRuntime, session_id: str, draft: ContextDraft
    ) -> ContextDraft | None:
        until_s = asyncio.get_running_loop().time() + BUSY_S
        await runtime.drain(PATIENCE_S)
        asked: JsonObject = {
            "messages": [*draft.messages],
            "system": draft.system,
            "model": draft.model,
            "tools": [*draft.tools],
        }
        request = asked
        if runtime.wants("transform_context"):
            listed = asked["messages"]
            found = await runtime.transform(
                "transform_context", listed, session_id, until_s=until_s
            )
            request = asked if found is listed else {**asked, "messages": found}
        if runtime.wants("before_provider_request"):
            said = await runtime.transform(
                "before_provider_request", request, session_id, until_s=until_s
            )
            request = {**request, **said} if isinstance(said, dict) else request

        def report(problem: str) -> None:
            runtime.notice("lua", "error", problem)
            if runtime.requires:
                raise runtime.refusal(
                    f"What scripts made of the request cannot be used: {problem}."
                )

        return None if request is asked else read_draft(request, draft, report)

    async def _before_tool_call(
        self, session_id: str, _name: str, _arguments: JsonObject
    ) -> JsonObject | None:
        runtime = await self._of_session(session_id)
        if runtime is not None:
            await runtime.drain(PATIENCE_S)
        return None

    async def _after_turn(self, session_id: str, turn: JsonObject) -> bool:
        runtime = await self._of_session(session_id)
        if runtime is None:
            return False
        # What a script asks for at the end of a turn is done before the next one.
        await runtime.drain(PATIENCE_S)
        if not runtime.wants("should_stop_after_turn"):
            return False
        return await runtime.predicate("should_stop_after_turn", turn, session_id)

    async def _summarizing(self, session_id: str, plan: JsonObject) -> JsonObject | None:
        runtime = await self._of_session(session_id)
        if runtime is None:
            return None
        async with _in_time(runtime):
            if not runtime.wants("compact_prepare"):
                return None
            found = await runtime.transform("compact_prepare", plan, session_id)
        if not isinstance(found, dict):
            runtime.notice("lua", "error", "compact_prepare gave no table; it is not used")
            return None
        return {name: found.get(name) for name in ("prompt", "instruction", "summary")}

    async def _of_session(self, session_id: str) -> ScriptRuntime | None:
        # A session is compacted without a run, too, and one of long ago may be forgotten here.
        project_id = self._project_of.get(session_id)
        return self._runtime_of(project_id or await self._transcript.project_of(session_id))

    # -- what happened -------------------------------------------------------------------------

    def _heard(self, event: SessionEvent) -> None:
        if event.name == "run.started":
            if len(self._project_of) >= MAX_KNOWN:
                self._project_of.pop(next(iter(self._project_of)))
            self._project_of[event.session_id] = event.project_id
        runtime = self._runtime_of(event.project_id)
        if runtime is not None:
            if event.name == "run.started":
                runtime.show_load_notices()
            self._tell(runtime, event)
        if event.name in {"session.switched", "session.switch_vetoed", "session.fork_vetoed"}:
            self._record(event)

    def _tell(self, runtime: ScriptRuntime, event: SessionEvent) -> None:
        data, about = event.data, event.session_id
        if data.get("agent", _TOP) != _TOP:
            return

        def tell(name: str, payload: Payload) -> None:
            runtime.tell(name, payload, about)

        match event.name:
            case "run.started":
                tell("before_agent_start", partial(self._beginning, event.session_id))
                tell("agent_start", {})
            case "run.ended":
                self._speaking.discard(event.session_id)
                tell("agent_end", {"ok": data.get("status") == "completed"})
            case "turn.ended":
                had = data.get("had_tool_calls") is True
                tell("turn_end", {"index": data.get("index"), "had_tool_calls": had})
            case "text.delta":
                self._delta(runtime, event)
            case "entry.appended":
                self._entry(runtime, event)
            case "tool.updated":
                done: JsonObject = {"done": data.get("done"), "total": data.get("total")}
                about_call = {"id": data.get("request_id"), "content": data.get("text")}
                tell("tool_update", {**about_call, "structured": done})
            case "tool.finished":
                tell("tool_result", _result(data))
            case "session.switched":
                moved = {"id": data.get("to"), "from": data.get("from")}
                tell("session_close", {"id": data.get("from"), "to": data.get("to")})
                runtime.tell("session_open", moved, str(data.get("to")))
            case _ if event.name in _AS_THEY_ARE:
                name, keys = _AS_THEY_ARE[event.name]
                tell(name, {key: data.get(theirs) for key, theirs in keys.items()})
            case _:
                return

    def _entry(self, runtime: ScriptRuntime, event: SessionEvent) -> None:
        session_id, entry_id = event.session_id, str(event.data.get("id"))
        if event.data.get("role") == "assistant":
            self._speaking.discard(session_id)
            usage = partial(self._usage, session_id, entry_id)
            runtime.tell("message_end", usage, session_id)
            runtime.tell("after_provider_response", usage, session_id)
        elif event.data.get("role") == "user":
            runtime.tell("user", partial(self._words, session_id, entry_id), session_id)

    def _delta(self, runtime: ScriptRuntime, event: SessionEvent) -> None:
        if event.session_id not in self._speaking:
            self._speaking.add(event.session_id)
            runtime.tell("message_start", {"id": event.run_id}, event.session_id)
        runtime.tell(
            "message_update",
            {"id": event.run_id, "delta": event.data.get("text")},
            event.session_id,
        )

    def _record(self, event: SessionEvent) -> None:
        asked_by = str(event.data.get("asked_by"))
        if not asked_by.startswith(SCRIPT_PREFIX):
            return
        data: JsonObject = {
            "plugin": asked_by.removeprefix(SCRIPT_PREFIX),
            "move": str(event.data.get("move")),
            "target": str(event.data.get("target") or event.data.get("to") or ""),
        }
        if event.name == "session.switched":
            name = "lua.session.applied"
            if event.data.get("entry_id") is not None:
                data["entry_id"] = str(event.data["entry_id"])
        else:
            name = "lua.session.vetoed"
            by = event.data.get("vetoed_by")
            data["vetoed_by"] = str(by).removeprefix(SCRIPT_PREFIX) if by else "host"
            data["reason"] = str(event.data.get("reason"))[:500]
        try:
            self._audit(AuditEvent(name, data, project_id=event.project_id))
        except AuditUnavailable as error:
            # What it tells of has happened already.
            _log.error("audit.event_lost", audit_event=name, error=str(error))

    async def _beginning(self, session_id: str) -> JsonValue:
        header = await self._transcript.header(session_id)
        last = await self._transcript.last(session_id, 1)
        return {
            "system_prompt": header.content.get("system_prompt") if header is not None else None,
            "first_user_message": _text_of(last[0].content) if last else None,
        }

    async def _usage(self, session_id: str, entry_id: str) -> JsonValue:
        entry = await self._transcript.find_entry(session_id, entry_id)
        usage = entry.content.get("usage")
        if not isinstance(usage, dict):
            return {"id": entry_id}
        counted: JsonObject = {
            "input": usage.get("input"),
            "output": usage.get("output"),
            "cache_read": usage.get("cached"),
            "cache_write": 0,
        }
        return {"id": entry_id, "usage": counted}

    async def _words(self, session_id: str, entry_id: str) -> JsonValue:
        entry = await self._transcript.find_entry(session_id, entry_id)
        return {"id": entry_id, "text": _text_of(entry.content)}


@asynccontextmanager
async def _in_time(runtime: ScriptRuntime) -> AsyncGenerator[None]:
    """Ask scripts before a model call; those that the operator requires must be done in time.

    Raises TransformRefused.
    """
    runtime.require()
    try:
        async with asyncio.timeout(REQUIRED_S if runtime.requires else None):
            yield
    except TimeoutError as error:
        raise runtime.refusal(f"The scripts took longer than {REQUIRED_S:.0f} seconds.") from error


def _text_of(content: JsonObject) -> str:
    blocks = content.get("content")
    texts = [
        str(one.get("text", ""))
        for one in (blocks if isinstance(blocks, list) else [])
        if isinstance(one, dict) and one.get("type") == "text"
    ]
    return "\n".join(texts)


def _result(data: JsonObject) -> JsonObject:
    error = data.get("error")
    return {
        "id": data.get("request_id"),
        "name": data.get("tool_name"),
        "is_error": error is not None,
        "text": str(error if error is not None else data.get("result")),
    }
