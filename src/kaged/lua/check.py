"""`check_script`: load a script once, in its cage, without letting it do anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.lua_powers import LuaPowerInvalid, LuaPowers, answer_request, parse_powers
from kaged.lua.calls import SHIPPED
from kaged.lua.errors import ScriptCallRefused
from kaged.lua.folder import ScriptFile
from kaged.lua.providers import read_providers
from kaged.lua.script import Script, ScriptParts, ScriptState, WorkerConnection
from kaged.lua.tools import read_tools
from kaged.lua.values import shown, shown_value

HARMLESS: Final[Mapping[str, JsonValue]] = {
    "kage.store.load": {"values": {}, "more": False},
    "kage.store.change": None,
    "kage.session.list": [],
    "kage.config": {},
    "kage.sleep_ms": None,
}
"""What a script may do while it is only looked at: nothing comes of it."""


@dataclass(slots=True)
class _Watcher:
    """A host that grants what the operator grants and does nothing else."""

    asked: dict[str, bool] = field(default_factory=dict[str, bool])
    notices: list[str] = field(default_factory=list[str])
    used: list[str] = field(default_factory=list[str])

    async def call(self, worker: WorkerConnection, method: str, params: JsonObject) -> JsonValue:
        """Answer requests for capabilities; refuse the rest."""
        if method == "kage.request_capabilities":
            try:
                wanted = parse_powers(params.get("names"))
            except LuaPowerInvalid as error:
                raise ScriptCallRefused(f"{method}: {error.message}") from error
            answer = answer_request(wanted, worker.granted, SHIPPED)
            self.asked.update({str(power): active for power, active in answer.items()})
            return {str(power): active for power, active in answer.items()}
        self.used.append(method)
        if method in HARMLESS:
            return HARMLESS[method]
        raise ScriptCallRefused(f"{method}: nothing is done while a script is only checked")

    def told(self, worker: WorkerConnection, method: str, params: JsonObject) -> None:
        """Note what it would have shown."""
        if method == "kage.notify":
            self.notices.append(shown(str(params.get("message"))))

    async def returned(self, worker: WorkerConnection) -> None:
        """Pass nothing on."""

    def registered(self, script: Script) -> None:
        """It is looked up at the end."""

    def ended(self, script: Script, reason: str) -> None:
        """Nothing waits for it: what it did until then is the answer."""


async def check_script(
    file: ScriptFile, granted: LuaPowers, make_parts: Callable[[_Watcher], ScriptParts]
) -> JsonObject:
    """Return whether a script loads, what it asks for and what it registers."""
    watcher = _Watcher()
    script = Script(file, granted, {}, make_parts(watcher))
    await script.start()
    registered = script.registered
    ok = script.state is ScriptState.RUNNING
    report: JsonObject = {
        "name": file.stem,
        "ok": ok,
        "error": None if ok else script.error,
        "capabilities": dict(watcher.asked.items()),
        "events": [*sorted(registered.events)],
        "commands": [shown_value(one) for one in registered.commands],
        "tools": [one.name for one in read_tools(file.stem, registered.tools)[0]],
        "providers": [name for one in read_providers(registered.providers) for name in one.shown],
        "notices": [*watcher.notices],
        "used_at_load": [*watcher.used],
    }
    await script.stop()
    return report
