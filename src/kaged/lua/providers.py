"""`ScriptProviders`: models that the scripts of one project provide.

A script answers one question at a time, as everything that is asked of it. So one that guards, by
an event whose answer counts, may not provide models: while it makes an answer, nobody could ask it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Final

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.lua_powers import LuaPower, decide_power
from kaged.lua.errors import ScriptCallRefused, ScriptDown
from kaged.lua.events import EVENTS, EventKind
from kaged.lua.limits import (
    MAX_PROVIDED_MODELS,
    MAX_PROVIDERS,
    MAX_WINDOW_TOKENS,
    MIN_WINDOW_TOKENS,
)
from kaged.lua.script import Script, WorkerConnection
from kaged.lua.values import shown, shown_object
from kaged.models.errors import ModelRefused, ModelUnavailable
from kaged.models.provided import ProviderQuestion

WAITING_EVENTS: Final = 64
"""How far a script may be ahead of who reads its answer."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_log = get_logger("kaged.lua")


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider as a script registered it; without models it takes any name."""

    name: str
    models: Mapping[str, int | None]
    """The window of each, where the script states one."""

    @property
    def shown(self) -> list[str]:
        """Return how its models are named in `local.toml`."""
        return [f"{self.name}/{one}" for one in self.models] or [f"{self.name}/*"]


def read_providers(listed: Sequence[JsonValue]) -> list[Provider]:
    """Read what a script has registered; what makes no sense is left out."""
    found: dict[str, Provider] = {}
    for one in listed[:MAX_PROVIDERS]:
        name = one.get("id") if isinstance(one, dict) else None
        if not isinstance(one, dict) or not isinstance(name, str) or not _NAME.fullmatch(name):
            continue
        models = one.get("models")
        rows = (models if isinstance(models, list) else [])[:MAX_PROVIDED_MODELS]
        found[name] = Provider(name, dict(_read_model(row) for row in rows if _is_model(row)))
    return list(found.values())


def _is_model(row: JsonValue) -> bool:
    model = row.get("id") if isinstance(row, dict) else None
    return isinstance(model, str) and _MODEL.fullmatch(model) is not None


def _read_model(row: JsonValue) -> tuple[str, int | None]:
    assert isinstance(row, dict)
    window = row.get("context")
    if type(window) is int and MIN_WINDOW_TOKENS <= window <= MAX_WINDOW_TOKENS:
        return str(row["id"]), window
    return str(row["id"]), None


def guarding_events(script: Script) -> list[str]:
    """Return the events of a script whose answers count."""
    return sorted(
        name for name in script.registered.events if EVENTS[name][0] is not EventKind.NOTIFICATION
    )


class ScriptProviders:
    """Asks the scripts in force; `emitted` takes what they emit meanwhile."""

    def __init__(self, scripts: Callable[[], Iterable[Script]], tasks: Tasks) -> None:
        self._scripts = scripts
        self._tasks = tasks
        self._open: dict[int, tuple[WorkerConnection, asyncio.Queue[JsonObject | None]]] = {}
        self._last = 0

    async def ask(self, question: ProviderQuestion) -> AsyncGenerator[JsonObject]:
        """Yield what the provider emits, until its function returns.

        Raises:
            ModelRefused: no script provides it, or the one that does may not.
            ModelUnavailable: the script is down or ended meanwhile.
        """
        script, worker = self._provider(question)
        self._last += 1
        number = self._last
        events: asyncio.Queue[JsonObject | None] = asyncio.Queue(WAITING_EVENTS)
        self._open[number] = (worker, events)
        params: JsonObject = {"id": question.provider, "stream": number, "request": question.body}
        asked = self._tasks.start(
            self._run(script, params, question.session_id, events), f"model of {script.stem}"
        )
        try:
            while (event := await events.get()) is not None:
                yield event
            answer = await asked
            if answer.get("error") is not None:
                yield {**answer, "type": "error", "message": str(answer["error"])}
        except ScriptDown as error:
            raise ModelUnavailable(error.message, fix=error.fix) from error
        finally:
            # A script that goes on is told so by its next `emit`.
            del self._open[number]
            while not events.empty():
                events.get_nowait()

    def stated_window(self, provider: str, model: str) -> int | None:
        """Return the window that the script in force states for a model; None without one."""
        for script in self._scripts():
            for one in read_providers(script.registered.providers):
                if one.name == provider and (not one.models or model in one.models):
                    return one.models.get(model)
        return None

    async def emitted(self, worker: WorkerConnection, params: JsonObject) -> None:
        """Take an event; waits while its reader is behind. Raises ScriptCallRefused when over."""
        number, event = params.get("stream"), params.get("event")
        owner, events = self._open.get(number if type(number) is int else 0, (None, None))
        if events is None or owner is not worker:
            raise ScriptCallRefused("emit: this answer is over")
        if not isinstance(event, dict):
            raise ScriptCallRefused("emit: takes a table")
        await events.put(shown_object(event))

    def _provider(self, question: ProviderQuestion) -> tuple[Script, WorkerConnection]:
        known: list[str] = []
        for script in self._scripts():
            for one in read_providers(script.registered.providers):
                known += one.shown
                if one.name != question.provider:
                    continue
                if one.models and question.model not in one.models:
                    continue
                worker = script.worker
                if worker is None:
                    break
                if not decide_power(script.active, LuaPower.PROVIDER).allowed:
                    raise ModelRefused(f"The script {script.stem} may not provide models.")
                if guards := guarding_events(script):
                    raise ModelRefused(
                        f"The script {script.stem} guards by {', '.join(guards)} and so may not "
                        "provide models: it could not be asked meanwhile.",
                        fix="Put the provider into a script of its own.",
                    )
                return script, worker
        there = f" It has {', '.join(known)[:300]}." if known else ""
        raise ModelRefused(
            f"No script of this project provides {question.provider}/{question.model}.{there}",
            fix="`kaged lua list` shows the scripts and what they provide.",
        )

    async def _run(
        self,
        script: Script,
        params: JsonObject,
        session_id: str,
        events: asyncio.Queue[JsonObject | None],
    ) -> JsonObject:
        try:
            answer = await script.ask("provider", params, focus=session_id or None)
            problem = answer.get("error")
            if problem is not None:
                _log.warning("lua.provider_failed", script=script.stem, error=shown(str(problem)))
            return answer
        finally:
            await events.put(None)
