"""No plugin stops a session, whatever it does when it is told of one or when it starts.

What plugins are told and what becomes of their answers is shown by `tests/whole/plugins`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fakes.played_model import PlayedModel, say
from fakes.session_stage import declared, session_stage
from fakes.work_lab import until
from kaged.base import ManualClock
from requirements import requirement

START = "on_session_start"
IDLE = "on_session_idle"
NULL = [{"result": None}]
BAD: dict[str, list[dict[str, Any]]] = {
    "hangs": [{"hang": True}],
    "errs": [{"error": [-32000, "no"]}],
    "dies": [{"exit": 3}],
    "lies": [{"result": {"inject": 5}}],
    "floods": [{"noise": "what?"}, {"flood": ["blah", 2000]}, {"result": 7}],
    "deaf": [{"close_stdin": True}],
}
GREETINGS = {"silent": "silent", "dies": "exit", "errs": "error", "babbles": "raw:nonsense"}


@requirement("AT-SESS-17", "PH-FAIL-10")
async def test_no_plugin_stops_a_session_in_any_hook(tmp_path: Path) -> None:
    """Each of them in each hook, one after the other; a good one behind them is still heard."""
    turns = [say(f"Answer {number}. " + "x" * 400) for number in range(6)]
    async with session_stage(tmp_path, PlayedModel(*turns, context_tokens=900), idle_s=60) as stage:
        for name, acts in BAD.items():
            hooks = {START: acts, IDLE: acts, "pre_compact": acts, "post_compact": acts}
            await stage.add(name, hooks, hook_timeout_sec=1)
        fine = {"result": {"inject": "good word"}}
        await stage.add(
            "good", {START: [fine], IDLE: NULL, "pre_compact": NULL, "post_compact": [fine]}
        )
        await stage.load(plugins=declared(*BAD, "good"))
        loop = stage.loop
        session = await loop.session()
        for number in range(6):
            async with asyncio.timeout(60):
                end = await loop.run(session, f"Question {number}. " + "y" * 400)
            assert end.status == "completed"
        for name in BAD:
            assert stage.received(name), name
        said = loop.model.texts()
        assert said[0].startswith("system: <plugin:good>good word</plugin:good>")
        assert any("<plugin:good>good word" in one for one in said[1:])
        assert "compaction.completed" in loop.audit.names()
        assert isinstance(loop.clock, ManualClock)
        loop.clock.advance(61)
        assert loop.driver.idle.sweep() == [session]
        await until(lambda: any("transcript" in one for one in stage.received("good")))
        async with asyncio.timeout(60):
            await stage.supervisor.stop_all()


@requirement("PH-FAIL-10")
async def test_no_plugin_holds_up_sessions_while_it_starts(tmp_path: Path) -> None:
    """They hang, die or send nonsense at their start; sessions begin and end meanwhile."""
    async with session_stage(tmp_path, PlayedModel(say("ok"), say("ok"))) as stage:
        await stage.load()
        for name, greet in GREETINGS.items():
            bad = stage.plugins.install({"greet": greet}, name=name, hooks=[START])
            stage.supervisor.register(bad)
        async with asyncio.TaskGroup() as group:
            starting = {
                name: group.create_task(stage.supervisor.enable(name)) for name in GREETINGS
            }
            async with asyncio.timeout(30):
                await stage.load(plugins=declared(*GREETINGS))
                assert (await stage.loop.talk("Hi")).status == "completed"
            assert not starting["silent"].done()
            for name in GREETINGS:
                await stage.supervisor.disable(name)
        async with asyncio.timeout(30):
            assert (await stage.loop.talk("Again")).status == "completed"
