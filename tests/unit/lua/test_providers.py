"""`ScriptProviders`: who may be asked for a model, and which answers are taken."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

import pytest

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.kernel.lua_powers import LuaPower, LuaPowers
from kaged.lua.errors import ScriptCallRefused
from kaged.lua.providers import ScriptProviders, read_providers
from kaged.lua.script import Registrations, Script, WorkerConnection
from kaged.models.errors import ModelRefused
from kaged.models.provided import ProviderQuestion

QUESTION = ProviderQuestion("p", "s", "parrot", "small", {})
EVENT: JsonObject = {"type": "text_delta", "delta": "hi"}


@dataclass(eq=False)
class FakeScript:
    """A script that emits one event to the stream that it is asked for."""

    active: LuaPowers
    stem: str = "parrot"
    registered: Registrations = field(
        default_factory=lambda: Registrations(
            providers=({"id": "parrot", "models": [{"id": "small", "context": 9000}]},)
        )
    )
    worker: WorkerConnection | None = None
    host: ScriptProviders | None = None
    stream: JsonValue = None

    async def ask(self, _method: str, params: JsonObject, *, focus: str | None) -> JsonObject:
        assert focus == "s"
        assert self.host is not None
        assert self.worker is not None
        self.stream = params["stream"]
        await self.host.emitted(self.worker, {"stream": self.stream, "event": EVENT})
        return {}


def providers(*powers: LuaPower) -> tuple[ScriptProviders, FakeScript]:
    script = FakeScript(frozenset(powers))
    script.worker = WorkerConnection("parrot", script.active)
    script.host = ScriptProviders(lambda: [cast("Script", script)], Tasks("t"))
    return script.host, script


async def answers(host: ScriptProviders) -> list[JsonObject]:
    async with aclosing(host.ask(QUESTION)) as events:
        return [event async for event in events]


async def test_a_worker_that_only_claims_to_provide_is_not_asked() -> None:
    host, _ = providers(LuaPower.NET)
    with pytest.raises(ModelRefused, match="may not provide"):
        await answers(host)


async def test_only_the_worker_that_is_asked_answers_and_only_while_it_is() -> None:
    host, script = providers(LuaPower.PROVIDER)
    async with aclosing(host.ask(QUESTION)) as events:
        assert await anext(events) == EVENT
        stranger = WorkerConnection("other", script.active)
        with pytest.raises(ScriptCallRefused):
            await host.emitted(stranger, {"stream": script.stream, "event": EVENT})
    assert script.worker is not None
    for number in (script.stream, 99, None, "1"):
        with pytest.raises(ScriptCallRefused, match="over"):
            await host.emitted(script.worker, {"stream": number, "event": EVENT})


def test_what_a_worker_registers_is_bounded_and_read_one_by_one() -> None:
    odd: list[JsonValue] = [
        7,
        {"id": 3},
        {"id": "a b"},
        {"id": "x" * 65},
        {"id": "ok", "models": 1},
    ]
    assert [one.shown for one in read_providers(odd)] == [["ok/*"]]
    models: list[JsonValue] = [{"id": f"m{n}"} for n in range(1000)]
    many: list[JsonValue] = [{"id": f"p{n}", "models": models} for n in range(100)]
    assert len(read_providers(many)) == 8
    assert len(read_providers(many)[0].models) == 64


def test_a_window_that_makes_no_sense_is_left_out() -> None:
    host, script = providers(LuaPower.PROVIDER)
    assert host.stated_window("parrot", "small") == 9000
    assert host.stated_window("parrot", "large") is None
    assert host.stated_window("other", "small") is None
    for window in (255, 100_000_001, -1, True, 9000.0, "9000", None):
        models: list[JsonValue] = [{"id": "small", "context": window}]
        script.registered = Registrations(providers=({"id": "parrot", "models": models},))
        assert host.stated_window("parrot", "small") is None, window
