"""`HostCalls`: every `kage` call that reaches outside a script, decided and done in the host.

What may be done depends on the line that a call came on: what the operator granted to that script
and what was asked for on that line. A name in the message counts for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from kaged.audit import AuditEvent
from kaged.base import Clock, JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.describe import describe_denial
from kaged.kernel.lua_powers import (
    LuaPower,
    LuaPowerInvalid,
    LuaPowers,
    active_powers,
    answer_request,
    decide_power,
    parse_powers,
)
from kaged.lua.dialogs import Dialogs
from kaged.lua.errors import PlaceRefused, ScriptCallRefused
from kaged.lua.event_streams import EventStreams
from kaged.lua.files import read_file, write_file
from kaged.lua.hooked_calls import PASSING, ScriptPolicies
from kaged.lua.keeping import ScriptStore
from kaged.lua.limits import MAX_NOTICE_CHARS
from kaged.lua.moves import ScriptSessions, custom_draft, label_draft
from kaged.lua.programs import ExecSpec, ScriptPrograms
from kaged.lua.script import WorkerConnection
from kaged.lua.secret_keys import use_key
from kaged.lua.values import shown
from kaged.lua.web import ScriptWeb
from kaged.wire.errors import RpcError
from kaged.workspace import Workspace
from kaged.workspace.errors import PathProtected
from kaged.workspace.undo_step import Author

SHIPPED: Final[LuaPowers] = frozenset(
    {
        LuaPower.SESSION_WRITE,
        LuaPower.EXEC,
        LuaPower.CONTEXT,
        LuaPower.ENV,
        LuaPower.NET,
        LuaPower.FS_WRITE,
        LuaPower.CRYPTO,
        LuaPower.PROVIDER,
    }
)
"""What can be answered with true."""

EXECS_AT_ONCE: Final = 4
MAX_SLEEP_MS: Final = 500
_REFUSED: Final = -32001
_UNKNOWN: Final = -32601

_log = structlog.get_logger("kaged.lua")


@dataclass(frozen=True, slots=True)
class CallParts:
    """What the calls of one project's scripts work on."""

    project_id: str
    workspace: Workspace
    sessions: ScriptSessions
    programs: ScriptPrograms
    web: ScriptWeb
    dialogs: Dialogs
    clock: Clock
    environ: Mapping[str, str]
    audit: Callable[[AuditEvent], None]
    notice: Callable[[str, str, str], None]
    store_of: Callable[[str], ScriptStore]
    describe: Callable[[], Awaitable[JsonObject]]
    shipped: LuaPowers = SHIPPED
    policies: ScriptPolicies | None = None


_Handler = Callable[["WorkerConnection", JsonObject], Awaitable[JsonValue] | None]


class HostCalls:
    """Answers the calls of the scripts of one project."""

    def __init__(self, parts: CallParts) -> None:
        self._parts = parts
        self._execs = asyncio.Semaphore(EXECS_AT_ONCE)
        self._streams = EventStreams(parts.web)
        sessions, store_of = parts.sessions, parts.store_of
        moves = LuaPower.SESSION_WRITE
        # A call that only takes note of something answers nothing, and at once.
        self._calls: dict[str, tuple[LuaPower | None, _Handler]] = {
            "kage.request_capabilities": (None, self._request_capabilities),
            "kage.session.entries": (moves, self._entries),
            "kage.session.switch": (moves, lambda w, p: sessions.ask_switch(w, p.get("target"))),
            "kage.session.fork_to": (moves, lambda w, p: sessions.ask_fork_to(w, p.get("at"))),
            "kage.session.list": (None, self._list),
            "kage.session.fork": (None, lambda w, p: sessions.ask_fork(w, p.get("at"))),
            "kage.session.append_entry": (None, self._append_entry),
            "kage.session.set_label": (None, self._set_label),
            "kage.exec": (LuaPower.EXEC, self._exec),
            "kage.env": (LuaPower.ENV, self._env),
            "kage.fs.read": (None, self._read),
            "kage.fs.write": (None, self._write),
            "kage.http": (None, self._http),
            "kage.http.post_stream": (LuaPower.NET, self._post_stream),
            "kage.http.next": (LuaPower.NET, lambda w, p: self._streams.next(w, p.get("id"))),
            "kage.http.close": (LuaPower.NET, lambda w, p: self._streams.close(w, p.get("id"))),
            "kage.crypto": (LuaPower.CRYPTO, self._crypto),
            "kage.ui.select": (None, self._select),
            "kage.ui.confirm": (None, self._confirm),
            "kage.ui.input": (None, lambda w, p: self._words(w, "input", p)),
            "kage.ui.editor": (None, lambda w, p: self._words(w, "editor", p)),
            "kage.store.load": (None, lambda w, p: store_of(w.stem).load(_start(p))),
            "kage.store.change": (None, self._store_change),
            "kage.sleep_ms": (None, self._sleep),
            "kage.config": (None, self._config),
            "kage.context_usage": (None, lambda worker, _params: sessions.usage(worker)),
            "kage.compact": (None, lambda w, p: sessions.ask_compact(w, p.get("prompt"))),
            "kage.send_message": (moves, self._send_message),
        }

    async def call(self, worker: WorkerConnection, method: str, params: JsonObject) -> JsonValue:
        """Do what a script asks for, if its line may.

        Raises:
            RpcError: it may not, or it is no call of ours; the script sees the words.
        """
        power, handler = self._calls.get(method, (None, None))
        if handler is None:
            raise RpcError(f"{shown(method)[:80]}: unknown call", number=_UNKNOWN)
        if power is not None:
            active = active_powers(worker.granted, worker.requested, self._parts.shipped)
            decision = decide_power(active, power)
            if not decision.allowed:
                self._refused(worker, method, power, decision.remedy)
                words = describe_denial(decision).words
                raise RpcError(f"{method}: {words}", number=_REFUSED)
        try:
            policies = self._parts.policies
            if policies is not None and method in PASSING:
                return await self._passed(policies, worker, method, params, handler)
            answer = handler(worker, params)
            return None if answer is None else await answer
        except PlaceRefused as error:
            reason = shown(error.message)[:MAX_NOTICE_CHARS]
            data: JsonObject = {"plugin": worker.stem, "request": method, "reason": reason}
            self._audit("lua.request.refused", data)
            raise RpcError(reason, number=_REFUSED) from error
        except ScriptCallRefused as error:
            raise RpcError(shown(error.message), number=_REFUSED) from error
        except KagedError as error:
            raise RpcError(f"{method}: {shown(error.message)}", number=_REFUSED) from error

    async def _passed(
        self,
        policies: ScriptPolicies,
        worker: WorkerConnection,
        method: str,
        params: JsonObject,
        handler: _Handler,
    ) -> JsonValue:
        """Do what reaches outside the script with the policies around it."""
        return await policies.around(
            worker.stem,
            lambda: self._parts.sessions.live(worker),
            method,
            params,
            lambda asked: handler(worker, asked),
        )

    def told(self, worker: WorkerConnection, method: str, params: JsonObject) -> None:
        """Called for each notification of a script."""
        message = shown(str(params.get("message", "")))[:MAX_NOTICE_CHARS]
        if method == "kage.notify":
            level = str(params.get("level", "info"))
            if level not in {"info", "warning", "error"}:
                level = "info"
            self._parts.notice(worker.stem, level, message)
            if level != "info":
                _log.warning("lua.notice", script=worker.stem, level=level, message=message)
        elif method == "kage.log":
            _log.info(
                "lua.log", script=worker.stem, level=str(params.get("level")), message=message
            )
        elif method == "kage.set_status":
            self._parts.notice(worker.stem, "status", shown(str(params.get("text") or ""))[:200])

    # -- capabilities --------------------------------------------------------------------------

    async def _request_capabilities(
        self, worker: WorkerConnection, params: JsonObject
    ) -> JsonValue:
        try:
            asked = parse_powers(params.get("names"))
        except LuaPowerInvalid as error:
            raise ScriptCallRefused(f"kage.request_capabilities: {error.message}") from error
        worker.requested |= asked
        answer = answer_request(asked, worker.granted, self._parts.shipped)
        for power, active in answer.items():
            data: JsonObject = {"plugin": worker.stem, "capability": str(power)}
            if active:
                self._audit("lua.capability.granted", data)
            else:
                why = "not granted" if power in self._parts.shipped else "not built"
                self._audit("lua.capability.refused", {**data, "reason": why})
        return {str(power): active for power, active in answer.items()}

    def _refused(self, worker: WorkerConnection, method: str, power: LuaPower, reason: str) -> None:
        self._audit(
            "lua.request.refused",
            {
                "plugin": worker.stem,
                "request": method,
                "capability": str(power),
                "reason": reason or "not active",
            },
        )

    # -- sessions ------------------------------------------------------------------------------

    async def _entries(self, worker: WorkerConnection, _params: JsonObject) -> JsonValue:
        return [*await self._parts.sessions.entries(worker)]

    async def _list(self, worker: WorkerConnection, _params: JsonObject) -> JsonValue:
        return [*await self._parts.sessions.list(worker)]

    def _append_entry(self, worker: WorkerConnection, params: JsonObject) -> None:
        draft = custom_draft(params.get("kind"), params.get("data"))
        self._parts.sessions.append(worker, draft)

    def _set_label(self, worker: WorkerConnection, params: JsonObject) -> None:
        draft = label_draft(params.get("anchor"), params.get("label"))
        self._parts.sessions.append(worker, draft)

    def _send_message(self, worker: WorkerConnection, params: JsonObject) -> None:
        text = _text("kage.send_message", params, "text")
        trigger = params.get("trigger_turn") is not False
        self._parts.sessions.ask_say(worker, shown(text), trigger=trigger)

    # -- files, programs, network --------------------------------------------------------------

    async def _read(self, _worker: WorkerConnection, params: JsonObject) -> JsonValue:
        return await read_file(self._parts.workspace, _text("kage.fs.read", params, "path"))

    async def _write(self, worker: WorkerConnection, params: JsonObject) -> None:
        path = _text("kage.fs.write", params, "path")
        content = params.get("content")
        if not isinstance(content, str):
            raise ScriptCallRefused("kage.fs.write: content must be a string")
        session = await self._parts.sessions.live(worker) or ""
        author = Author(session, "", f"lua:{worker.stem}", "kage.fs.write")
        try:
            await write_file(self._parts.workspace, author, path, content)
        except PlaceRefused as error:
            if isinstance(error.__cause__, PathProtected):
                data: JsonObject = {"path": error.__cause__.path, "who": author.tool_name}
                self._audit("protected_path.refused", {**data, "caller": author.caller})
            raise

    async def _exec(self, worker: WorkerConnection, params: JsonObject) -> JsonValue:
        spec = ExecSpec.read(params)
        started_s = self._parts.clock.monotonic_s()
        result: JsonObject = {}
        try:
            async with self._execs:
                result = await self._parts.programs.run(worker.stem, spec)
            return result
        finally:
            took = (self._parts.clock.monotonic_s() - started_s) * 1000
            self._audit(
                "lua.exec",
                {
                    "plugin": worker.stem,
                    "cmd": shown(spec.cmd),
                    "args_count": len(spec.args),
                    "exit_code": result.get("code"),
                    "duration_ms": round(took, 1),
                    "timed_out": result.get("timed_out", False),
                },
            )

    async def _env(self, _worker: WorkerConnection, params: JsonObject) -> JsonValue:
        return self._parts.environ.get(_text("kage.env", params, "name"))

    async def _http(self, _worker: WorkerConnection, params: JsonObject) -> JsonValue:
        method, options = params.get("method"), params.get("options")
        if method not in {"get", "post", "delete"}:
            raise ScriptCallRefused("kage.http: get, post and delete are there")
        url = _text(f"kage.http.{method}", params, "url")
        given = options if isinstance(options, dict) else {}
        return await self._parts.web.request(str(method), url, given)

    async def _post_stream(self, worker: WorkerConnection, params: JsonObject) -> JsonValue:
        options = params.get("options")
        url = _text("kage.http.post_stream", params, "url")
        return await self._streams.open(worker, url, options if isinstance(options, dict) else {})

    async def _crypto(self, _worker: WorkerConnection, params: JsonObject) -> JsonValue:
        return await asyncio.to_thread(use_key, params)

    async def returned(self, worker: WorkerConnection) -> None:
        """Let go of what a script has left open, now that it has returned."""
        await self._streams.drop(worker)

    # -- people --------------------------------------------------------------------------------

    async def _select(self, worker: WorkerConnection, params: JsonObject) -> JsonValue:
        items = params.get("items")
        count = len(items) if isinstance(items, list) else 0
        chosen = await self._parts.dialogs.ask(worker.stem, "select", params)
        if isinstance(chosen, int) and not isinstance(chosen, bool) and 1 <= chosen <= count:
            return chosen
        return None

    async def _confirm(self, worker: WorkerConnection, params: JsonObject) -> JsonValue:
        return await self._parts.dialogs.ask(worker.stem, "confirm", params) is True

    async def _words(self, worker: WorkerConnection, kind: str, params: JsonObject) -> JsonValue:
        answer = await self._parts.dialogs.ask(worker.stem, kind, params)
        return answer if isinstance(answer, str) else None

    # -- the rest ------------------------------------------------------------------------------

    async def _sleep(self, _worker: WorkerConnection, params: JsonObject) -> None:
        ms = params.get("ms")
        if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms <= MAX_SLEEP_MS:
            raise ScriptCallRefused("kage.sleep_ms: takes 0 to 500")
        await asyncio.sleep(ms / 1000)

    async def _store_change(self, worker: WorkerConnection, params: JsonObject) -> None:
        new, gone = params.get("new"), params.get("gone")
        await self._parts.store_of(worker.stem).change(
            new if isinstance(new, dict) else {},
            gone if isinstance(gone, list) else [],
            more=params.get("more") is True,
        )

    async def _config(self, worker: WorkerConnection, _params: JsonObject) -> JsonValue:
        found = await self._parts.describe()
        active = active_powers(worker.granted, worker.requested, self._parts.shipped)
        if LuaPower.CONTEXT not in active:
            found.pop("system_prompt", None)
        return found

    def _audit(self, name: str, data: JsonObject) -> None:
        self._parts.audit(AuditEvent(name, data, project_id=self._parts.project_id))


def _text(who: str, params: JsonObject, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise ScriptCallRefused(f"{who}: {name} must be a non-empty string")
    return value


def _start(params: JsonObject) -> int:
    value = params.get("from")
    return value if isinstance(value, int) and value >= 0 else 0
