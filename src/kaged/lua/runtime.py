"""`ScriptRuntime`: the scripts of one loaded project, their events, commands and moves.

Scripts are loaded one after another in order of their file names. Where an answer counts (veto,
transform) they are asked one at a time in that order; notifications reach each script in order,
but no script waits for another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias, TypeVar

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.lua_powers import LuaPowers, print_powers
from kaged.lua.calls import HostCalls
from kaged.lua.dialogs import Dialogs
from kaged.lua.errors import ScriptDown
from kaged.lua.events import EVENTS, EventKind
from kaged.lua.folder import FoundScripts, ScriptFile
from kaged.lua.limits import MAX_COMMANDS, MAX_QUEUED_EVENTS
from kaged.lua.moves import ScriptSessions, outcome_words
from kaged.lua.providers import ScriptProviders, guarding_events, read_providers
from kaged.lua.script import Script, ScriptParts, ScriptState, WorkerConnection
from kaged.lua.timers import ScriptTimers
from kaged.lua.tools import read_tools
from kaged.lua.values import like, shown, shown_object, shown_value
from kaged.sessions.transforms import TransformRefused

DRAIN_S: Final = 30.0
"""How long others wait for scripts to be done with what they were told."""
MAX_NOTICES: Final = 200

_log = get_logger("kaged.lua")

T = TypeVar("T")
Payload: TypeAlias = "JsonValue | Callable[[], Awaitable[JsonValue]]"


@dataclass(frozen=True, slots=True)
class Decided:
    """What the veto list said: nothing, no, or elsewhere."""

    cancel: str | None = None
    patch: str | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command gave back, with what people were told meanwhile."""

    text: str | None = None
    is_error: bool = False
    structured: JsonValue = None
    notices: tuple[JsonObject, ...] = ()

    def as_json(self) -> JsonObject:
        """Return it for clients."""
        return {
            "text": self.text,
            "is_error": self.is_error,
            "structured": self.structured,
            "notices": [*self.notices],
        }


@dataclass(frozen=True, slots=True)
class _Told:
    event: str
    payload: Payload
    session_id: str | None


@dataclass(slots=True)
class _Mailbox:
    """What a script has to be told, in order."""

    waiting: deque[_Told] = field(default_factory=deque["_Told"])
    working: asyncio.Task[None] | None = None


class ScriptRuntime:
    """Runs the scripts of one project. Implements `ScriptHost` for them."""

    def __init__(
        self,
        calls: HostCalls,
        sessions: ScriptSessions,
        dialogs: Dialogs,
        *,
        publish: Callable[[str, JsonObject], None],
        offer: Callable[[Mapping[str, Sequence[JsonValue]]], Sequence[tuple[str, str]]],
        required: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.dialogs = dialogs
        self.scripts: list[Script] = []
        self.found: FoundScripts | None = None
        self._calls = calls
        self._sessions = sessions
        self._publish = publish
        self._offer = offer
        self._required = required
        self._fresh: list[Script] = []
        self._boxes: dict[Script, _Mailbox] = {}
        self._notices: deque[tuple[int, JsonObject]] = deque(maxlen=MAX_NOTICES)
        self._noticed = 0
        self._at_load: list[JsonObject] = []
        self._tasks = Tasks("lua")
        self._timers = ScriptTimers(self._later_call, self._tasks)
        self.providers = ScriptProviders(lambda: self.scripts, self._tasks)
        self._loading = asyncio.Lock()

    # -- loading -------------------------------------------------------------------------------

    async def load(
        self,
        found: FoundScripts,
        parts: ScriptParts,
        granted: Callable[[str], LuaPowers],
        config: Callable[[str], JsonObject],
    ) -> None:
        """Load these scripts, one after another, beside those that run.

        When all are there, they take the place of the others in one step: at no time is something
        let through because its script is being exchanged. What they ask of sessions while they
        load is done afterwards, in the background: a move waits for the guards of its project, and
        these scripts are among them.
        """
        async with self._loading:
            self._fresh, self._at_load = [], []
            for path, why in found.failed:
                self.notice("lua", "error", f"plugin '{path}': {why}")
            try:
                for file in found.scripts:
                    await self._load_one(file, parts, granted(file.stem), config(file.stem))
            except BaseException:
                fresh, self._fresh = self._fresh, []
                await asyncio.gather(*(script.stop() for script in fresh))
                raise
            fresh, self._fresh = self._fresh, []
            self.found = found
            await self._replace(fresh)
        for script in fresh:
            if script.worker is not None and script.worker.asks:
                self._tasks.start(self.returned(script.worker), f"moves of {script.stem}")

    async def _load_one(
        self, file: ScriptFile, parts: ScriptParts, granted: LuaPowers, config: JsonObject
    ) -> None:
        script = Script(file, granted, config, parts)
        self._fresh.append(script)
        await script.start()
        if script.state is ScriptState.FAILED:
            _log.warning("lua.load_failed", script=script.stem, error=script.error)
            self.notice(file.stem, "error", f"plugin '{file.path}': {script.error}")

    async def close(self) -> None:
        """End all scripts."""
        async with self._loading:
            await self._replace([])
        await self._tasks.close()

    async def _replace(self, fresh: list[Script]) -> None:
        scripts, self.scripts = self.scripts, fresh
        self._boxes = {script: _Mailbox() for script in fresh}
        self.dialogs.dismiss_all()
        self._offer_tools()
        for script in fresh:
            if script.registered.providers and (guards := guarding_events(script)):
                said = f"it also guards by {', '.join(guards)}; a script does one or the other"
                self.notice(script.stem, "error", f"kage.register_provider: not used, {said}")
        for script in scripts:
            self._sessions.drop(script.stem)
        self._timers.keep_only([script.worker for script in fresh])
        for script in fresh:
            self._timers.in_force(script)
        await asyncio.gather(*(script.stop() for script in scripts))

    def describe(self) -> JsonObject:
        """Return the scripts for people: state, grants, what they registered."""
        found = self.found
        rows: list[JsonValue] = [_described(script) for script in self.scripts]
        failed: list[JsonValue] = [
            {"path": path, "error": why} for path, why in (found.failed if found else ())
        ]
        return {
            "scripts": rows,
            "failed": failed,
            "skipped": [*(found.skipped if found else ())],
        }

    # -- what scripts ask ----------------------------------------------------------------------

    async def call(self, worker: WorkerConnection, method: str, params: JsonObject) -> JsonValue:
        """Do what a script asks for, if it may."""
        if method == "kage.provider.emit":
            # Only a question that the host has put to this worker has anything to emit to.
            return await self.providers.emitted(worker, params)
        return await self._calls.call(worker, method, params)

    def told(self, worker: WorkerConnection, method: str, params: JsonObject) -> None:
        """Called for each notification of a script."""
        if method == "kage.timer":
            in_force = next((one for one in self.scripts if one.worker is worker), None)
            self._timers.ask(worker, in_force, params)
        elif method == "kage.timer.stop":
            self._timers.stop(worker, params)
        else:
            self._calls.told(worker, method, params)

    def registered(self, script: Script) -> None:
        """Offer the tools of a script that is in force as it has them now."""
        if script in self.scripts:
            self._timers.in_force(script)
            self._offer_tools()

    async def returned(self, worker: WorkerConnection) -> None:
        """Pass on what a script that has returned asked of its session, once it is in force."""
        await self._calls.returned(worker)
        if any(script.worker is worker for script in self._fresh):
            return
        try:
            outcome = await self._sessions.pass_on(worker)
        except KagedError as error:
            self.notice(worker.stem, "error", error.message)
            return
        if outcome is not None:
            words = outcome_words(outcome)
            if words is not None:
                self.notice(worker.stem, "error", words)

    def ended(self, script: Script, reason: str) -> None:
        """Show people that a script's worker ended, and drop what it had asked for."""
        self._sessions.drop(script.stem)
        self._timers.keep_only([one.worker for one in (*self.scripts, *self._fresh)])
        _log.warning("lua.script_down", script=script.stem, reason=reason)
        self.notice(script.stem, "error", f"the script {script.stem} ended: {reason}")

    def notice(self, script: str, level: str, message: str) -> None:
        """Show people a line of a script."""
        data: JsonObject = {"script": script, "level": level, "message": message}
        if self._fresh and len(self._at_load) < MAX_NOTICES:
            self._at_load.append(data)
        self._noticed += 1
        self._notices.append((self._noticed, data))
        self._publish("lua.notice", data)

    def show_load_notices(self) -> None:
        """Show once more, to people who talk with agents, what was said while nobody listened."""
        told, self._at_load = self._at_load, []
        for data in told:
            self._publish("lua.load_notice", data)

    def notices_after(self, number: int) -> tuple[JsonObject, ...]:
        """Return the notices with higher numbers."""
        return tuple(data for seq, data in self._notices if seq > number)

    # -- commands ------------------------------------------------------------------------------

    def commands(self) -> list[JsonObject]:
        """Return every command, the first of a name only."""
        found: dict[str, JsonObject] = {}
        for script in self.scripts:
            for command in script.registered.commands[:MAX_COMMANDS]:
                name = str(command.get("name"))
                found.setdefault(name, {**shown_object(command), "script": script.stem})
        return list(found.values())

    async def command(self, name: str, raw: str, *, interactive: bool) -> CommandOutput:
        """Run a command; when this returns, the move it asked for is made, or refused.

        Raises:
            KagedError: `lua_command_not_found`; no running script has it.
        """
        script = self._owner(name)
        before = self._noticed
        if interactive:
            with self.dialogs.front():
                answer = await self._run_command(script, name, raw)
        else:
            answer = await self._run_command(script, name, raw)
        text = answer.get("text")
        return CommandOutput(
            text=shown(text) if isinstance(text, str) else None,
            is_error=answer.get("is_error") is True,
            structured=shown_value(answer.get("structured")),
            notices=self.notices_after(before),
        )

    async def _run_command(self, script: Script, name: str, raw: str) -> JsonObject:
        try:
            answer = await script.ask("command", {"name": name, "raw": raw})
        except ScriptDown as error:
            return {"text": f"plugin command {name}: {error.message}", "is_error": True}
        await self.drain()
        return answer

    def _owner(self, name: str) -> Script:
        for script in self.scripts:
            for command in script.registered.commands[:MAX_COMMANDS]:
                aliases = command.get("aliases")
                others = aliases if isinstance(aliases, list) else []
                if name == command.get("name") or name in others:
                    return script
        down = [one.stem for one in self.scripts if one.state is ScriptState.DOWN]
        hint = f"The script {', '.join(down)} is down." if down else ""
        raise KagedError(
            f"No script has a command {name!r}. {hint}".strip(),
            code="lua_command_not_found",
            fix="`kaged lua list` shows the scripts and their commands.",
        )

    # -- tools and later calls -----------------------------------------------------------------

    async def call_tool(
        self, stem: str, name: str, arguments: JsonObject, session_id: str
    ) -> JsonObject:
        """Run a tool of a script about a session. Raises ScriptDown.

        A caller that gives up leaves the script to its end: it is asked one thing at a time.
        """
        script = next((one for one in self.scripts if one.stem == stem), None)
        if script is None:
            raise ScriptDown(f"There is no script {stem}.")
        body: JsonObject = {"name": name, "input": arguments}
        asked = self._tasks.start(script.ask("tool", body, focus=session_id), f"{stem}.{name}")
        return await asyncio.shield(asked)

    def _offer_tools(self) -> None:
        tools = {one.stem: one.registered.tools for one in self.scripts if one.registered.tools}
        for stem, why in self._offer(tools):
            self.notice(stem, "error", f"kage.register_tool: {why}")

    async def _later_call(self, script: Script, number: int, focus: str | None) -> bool:
        """Make a call that a script asked for; returns whether its timer may go on."""
        try:
            answer = await script.ask("timer", {"id": number}, focus=focus)
        except ScriptDown as error:
            _log.warning("lua.timer_lost", script=script.stem, why=error.message)
            return False
        problem = answer.get("error")
        if problem is not None:
            words = shown(str(problem))
            _log.warning("lua.timer_failed", script=script.stem, error=words)
            self.notice(script.stem, "warning", f"a later call raised and is over: {words}")
        return problem is None and answer.get("gone") is not True

    # -- events --------------------------------------------------------------------------------

    def wants(self, event: str) -> bool:
        """Return whether any script listens."""
        return any(event in script.registered.events for script in self.scripts)

    def tell(self, event: str, payload: Payload, session_id: str | None = None) -> None:
        """Send an event to every script that listens; returns at once, each gets them in order."""
        for script in self.scripts:
            if event not in script.registered.events:
                continue
            box = self._boxes[script]
            if len(box.waiting) >= MAX_QUEUED_EVENTS:
                _log.warning("lua.event_dropped", script=script.stem, on=event)
                continue
            box.waiting.append(_Told(event, payload, session_id))
            if box.working is None or box.working.done():
                box.working = self._tasks.start(self._deliver(script, box), script.stem)

    async def drain(self, limit_s: float = DRAIN_S) -> bool:
        """Wait until scripts are done with what they were told; False when it took too long."""
        tasks = {box.working for box in self._boxes.values() if box.working is not None}
        tasks = {one for one in tasks if not one.done() and one is not asyncio.current_task()}
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        return not late

    @property
    def requires(self) -> bool:
        """Whether the operator has named scripts without which no model is asked."""
        return bool(self._required())

    def require(self) -> None:
        """Raise TransformRefused unless every script runs that the operator requires."""
        running = {one.stem for one in self.scripts if one.state is ScriptState.RUNNING}
        for stem in self._required():
            if stem not in running:
                raise self.refusal(f"The script {stem} is not running.")

    def refusal(self, why: str) -> TransformRefused:
        """Return the error of a model call that a required script could not see."""
        return TransformRefused(
            f"{why} The model is not asked without {', '.join(self._required())}.",
            fix="`kaged lua list` shows what is wrong with a script. `required` below [lua] in "
            "config.toml names those that must have their say.",
        )

    async def transform(
        self,
        event: str,
        payload: JsonValue,
        session_id: str | None = None,
        *,
        until_s: float | None = None,
    ) -> JsonValue:
        """Pass a payload through the scripts in load order; returns the last one's.

        One that fails is passed over, except those that the operator requires. So is one that is
        busy, when the event has to be over at `until_s` of the loop's clock: then each script has
        half of the time that is left.

        Raises:
            TransformRefused: a required one failed.
        """

        async def ask(scripts: Sequence[Script]) -> JsonValue:
            passed = payload
            for script in scripts:
                if script.stem in self._required():
                    value = await self._must_answer(script, event, passed, session_id)
                else:
                    value = await self._asked_until(until_s, script, event, passed, session_id)
                if value is not None:
                    passed = like(passed, value)
            return passed

        return await self._in_force(ask)

    async def predicate(
        self, event: str, payload: JsonValue, session_id: str | None = None
    ) -> bool:
        """Ask whether any script says exactly true."""

        async def ask(scripts: Sequence[Script]) -> bool:
            for script in scripts:
                if await self._asked(script, event, payload, session_id) is True:
                    return True
            return False

        return await self._in_force(ask)

    async def decide(self, event: str, target: str, session_id: str | None = None) -> Decided:
        """Ask the veto list; a script that fails, dies or is down has said no."""

        async def ask(scripts: Sequence[Script]) -> Decided:
            try:
                self.require()
            except TransformRefused as error:
                return Decided(cancel=error.message)
            for script in scripts:
                if script.state is not ScriptState.RUNNING and event in script.last_events:
                    return Decided(cancel=f"The script {script.stem} is down.", by=script.stem)
                try:
                    said = await self._answer(script, event, target, session_id)
                except ScriptDown as error:
                    return Decided(cancel=error.message, by=script.stem)
                if not isinstance(said, dict):
                    continue
                cancel, patch = said.get("cancel"), said.get("patch")
                if isinstance(cancel, str):
                    return Decided(cancel=shown(cancel), by=script.stem)
                if isinstance(patch, str):
                    return Decided(patch=patch, by=script.stem)
            return Decided()

        return await self._in_force(ask)

    async def ask_ui(self, stem: str, entry: str, params: JsonObject) -> JsonObject:
        """Let a script draw, complete or handle a key. Raises ScriptDown."""
        for script in self.scripts:
            if script.stem == stem:
                return await script.ask(entry, params)
        raise ScriptDown(f"There is no script {stem}.")

    async def _in_force(self, ask: Callable[[Sequence[Script]], Awaitable[T]]) -> T:
        """Ask the scripts; when they are exchanged meanwhile, ask the new ones instead.

        One that was ended in the middle of it has not had its say.
        """
        while True:
            scripts = self.scripts
            try:
                answer = await ask(scripts)
            except TransformRefused:
                if scripts is self.scripts:
                    raise
                continue
            if scripts is self.scripts:
                return answer

    async def _deliver(self, script: Script, box: _Mailbox) -> None:
        while box.waiting:
            told = box.waiting.popleft()
            known = await told.payload() if callable(told.payload) else told.payload
            await self._asked(script, told.event, known, told.session_id)

    async def _asked(
        self, script: Script, event: str, payload: JsonValue, session_id: str | None = None
    ) -> JsonValue:
        """Ask a script; one that is down has no answer."""
        try:
            return await self._answer(script, event, payload, session_id)
        except ScriptDown as error:
            _log.warning("lua.event_lost", script=script.stem, on=event, why=error.message)
            return None

    async def _asked_until(
        self,
        until_s: float | None,
        script: Script,
        event: str,
        payload: JsonValue,
        session_id: str | None,
    ) -> JsonValue:
        """Ask a script for half of the time until then; people are told of one that is busy."""
        if until_s is None:
            return await self._asked(script, event, payload, session_id)
        share_s = max((until_s - asyncio.get_running_loop().time()) / 2, 0)
        try:
            async with asyncio.timeout(share_s):
                return await self._asked(script, event, payload, session_id)
        except TimeoutError:
            _log.warning("lua.event_lost", script=script.stem, on=event, why="it was busy")
            words = f"{script.stem} was passed over at '{event}': it was busy for {share_s:.0f} s"
            self.notice(script.stem, "warning", words)
            return None

    async def _must_answer(
        self, script: Script, event: str, payload: JsonValue, session_id: str | None = None
    ) -> JsonValue:
        """Ask a script that has to have its say. Raises TransformRefused."""
        try:
            return await self._answer(script, event, payload, session_id, strict=True)
        except ScriptDown as error:
            raise self.refusal(error.message) from error

    async def _answer(
        self,
        script: Script,
        event: str,
        payload: JsonValue,
        session_id: str | None,
        *,
        strict: bool = False,
    ) -> JsonValue:
        """Return what the handlers of a script gave; None if it does not listen.

        Raises ScriptDown; with `strict` also when a handler raised.
        """
        if event not in script.registered.events:
            return None
        body: JsonObject = {"name": event, "payload": payload}
        answer = await script.ask("event", body, focus=session_id)
        failed = self._complain(script, event, answer)
        if strict and failed:
            raise ScriptDown(f"The script {script.stem} failed at {event}: {failed[0]}.")
        return answer.get("value")

    def _complain(self, script: Script, event: str, answer: JsonObject) -> list[str]:
        problems = answer.get("errors")
        failed = [shown(str(one)) for one in problems] if isinstance(problems, list) else []
        for words in failed:
            _log.warning("lua.handler_failed", script=script.stem, on=event, error=words)
            if EVENTS[event][0] is not EventKind.VETO:
                self.notice(script.stem, "warning", f"plugin handler for '{event}' raised: {words}")
        return failed


def _described(script: Script) -> JsonObject:
    registered = script.registered
    return {
        "name": script.stem,
        "path": script.file.path,
        "state": script.state.value,
        "error": script.error or None,
        "pid": script.pid,
        "granted": [*print_powers(script.granted)],
        "active": [*print_powers(script.active)],
        "refused": [*print_powers(script.refused)],
        "events": [*sorted(registered.events)],
        "commands": [shown_object(one) for one in registered.commands],
        "tools": [one.name for one in read_tools(script.stem, registered.tools)[0]],
        "providers": [name for one in read_providers(registered.providers) for name in one.shown],
        "restarts": script.restarts,
    }
