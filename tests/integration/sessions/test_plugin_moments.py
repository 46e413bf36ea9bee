"""The moments of a session that plugins take part in, with real plugins in real cages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fakes.loop_lab import PROJECT, LoopLab
from fakes.played_model import PlayedModel, call, say
from fakes.session_stage import SessionStage, declared, session_stage
from fakes.work_lab import until
from kaged.base import ManualClock
from kaged.models.turn import ModelRequest, ModelTurn
from requirements import requirement

NULL = [{"result": None}]
START = "on_session_start"
IDLE = "on_session_idle"


def advance(loop: LoopLab, seconds: float) -> None:
    assert isinstance(loop.clock, ManualClock)
    loop.clock.advance(seconds)


@requirement("PH-HOOK-03", "PH-HOOK-04")
async def test_the_start_of_a_session_is_told_once_before_its_first_model_call(
    tmp_path: Path,
) -> None:
    """What plugins inject stands before the prompt in every run, wrapped, and after a restart."""
    heard: list[int] = []

    async def look(request: ModelRequest) -> ModelTurn:
        del request
        heard.append(len(stage.received("mem")))
        return say("ok")

    async with session_stage(tmp_path, PlayedModel(look, look, look)) as stage:
        await stage.add("mem", {START: [{"result": {"inject": "I remember."}}]})
        await stage.add("below", {START: [{"result": {"inject": "never"}}]})
        await stage.load(
            plugins=declared("mem"),
            subagents={
                "kid": {
                    "model": "default",
                    "system_prompt": "x",
                    "plugins": declared("below", hooks=["pre_compact"]),
                }
            },
        )
        loop = stage.loop
        session = await loop.session()
        await loop.run(session, "One")
        await loop.run(session, "Two")
        assert heard == [1, 1]
        prompt = "system: <plugin:mem>I remember.</plugin:mem>\n\nYou help."
        assert [loop.model.texts(at)[0] for at in (0, 1)] == [prompt] * 2
        assert stage.received("below") == []

        loop.driver._known._known.clear()  # as after a restart
        await loop.run(session, "Three")
        assert heard == [1, 1, 1]
        assert loop.model.texts()[0] == prompt


@requirement("PH-HOOK-14", "PH-HOOK-15")
@pytest.mark.parametrize("answer", [None, {"inject": ""}, {}])
async def test_nothing_and_an_empty_text_inject_nothing(tmp_path: Path, answer: Any) -> None:
    """The prompt is the agent's own, without delimiters."""
    async with session_stage(tmp_path, PlayedModel(say("ok"))) as stage:
        await stage.add("mem", {START: [{"result": answer}]})
        await stage.load(plugins=declared("mem"))
        await stage.loop.talk("Hi")
        assert len(stage.received("mem")) == 1
        assert stage.loop.model.texts()[0] == "system: You help."


@requirement("PH-HOOK-05", "PH-AMB-47", "PH-HOOK-19")
async def test_an_idle_session_is_told_with_its_whole_history(tmp_path: Path) -> None:
    """Once for each time that something happened; nobody waits for the plugin."""
    model = PlayedModel(say("A"), say("B"))
    async with session_stage(tmp_path, model, idle_s=60) as stage:
        await stage.add("mem", {START: NULL, IDLE: [{"result": {"inject": "ignored"}}]})
        await stage.add("slow", {START: NULL, IDLE: [{"hang": True}]}, hook_timeout_sec=30)
        await stage.load(plugins=declared("mem", "slow"))
        loop = stage.loop
        session = await loop.session()
        await loop.run(session, "One")
        advance(loop, 59)
        assert loop.driver.idle.sweep() == []
        advance(loop, 2)
        assert loop.driver.idle.sweep() == [session]
        await until(lambda: len(stage.received("slow")) == 2)
        advance(loop, 600)
        assert loop.driver.idle.sweep() == []
        (told,) = [one for one in stage.received("mem") if "transcript" in one]
        assert [(one["role"], one["content"]) for one in told["transcript"]] == [
            ("user", "One"),
            ("assistant", "A"),
        ]

        # The slow one still hangs in its hook; the session does not care.
        assert (await loop.run(session, "Two")).text == "B"
        assert loop.model.texts()[0] == "system: You help."
        advance(loop, 61)
        assert loop.driver.idle.sweep() == [session]
        await until(lambda: len([one for one in stage.received("mem") if "transcript" in one]) == 2)
        again = stage.received("mem")[-1]["transcript"]
        assert [one["content"] for one in again] == ["One", "A", "Two", "B"]


@requirement("PH-HOOK-30")
async def test_idle_timers_do_not_outlive_the_daemon(tmp_path: Path) -> None:
    """After a restart there is no fire before something happened."""
    async with session_stage(tmp_path, PlayedModel(say("A")), idle_s=60) as stage:
        await stage.add("mem", {START: NULL, IDLE: NULL})
        await stage.load(plugins=declared("mem"))
        session = await stage.loop.session()
        await stage.loop.run(session, "One")
    again = tmp_path / "again"
    again.mkdir()
    for one in tmp_path.glob("kaged.db*"):
        one.rename(again / one.name)
    async with session_stage(again, PlayedModel(say("B")), idle_s=60) as stage:
        await stage.add("mem", {START: NULL, IDLE: NULL})
        await stage.load(plugins=declared("mem"))
        advance(stage.loop, 3600)
        assert stage.loop.driver.idle.sweep() == []
        await stage.loop.run(session, "Two")
        advance(stage.loop, 61)
        assert stage.loop.driver.idle.sweep() == [session]
        await until(lambda: len(stage.received("mem")) == 1)
        assert len(stage.received("mem")[0]["transcript"]) == 4


@requirement("AT-SESS-17", "PH-FAIL-10")
@pytest.mark.parametrize(
    "acts",
    [
        [{"hang": True}],
        [{"error": [-32000, "no"]}],
        [{"exit": 3}],
        [{"result": {"inject": 5}}],
        [{"noise": "what?"}, {"flood": ["blah", 2000]}, {"result": 7}],
        [{"close_stdin": True}],
    ],
    ids=["hangs", "errs", "dies", "lies", "floods", "deaf"],
)
async def test_no_plugin_stops_a_session_in_any_hook(tmp_path: Path, acts: Any) -> None:
    """Each hook in turn, on the root and on a child; a good plugin behind it is still heard."""
    turns = [say(f"Answer {number}. " + "x" * 400) for number in range(6)]
    kid = {
        "model": "default",
        "system_prompt": "x",
        "plugins": {"bad": {"package": "bad"}, "good": {"package": "good"}},
    }
    async with session_stage(tmp_path, PlayedModel(*turns, context_tokens=900), idle_s=60) as stage:
        hooks = {START: acts, IDLE: acts, "pre_compact": acts, "post_compact": acts}
        await stage.add("bad", hooks, hook_timeout_sec=1)
        fine = {"result": {"inject": "good word"}}
        await stage.add(
            "good", {START: [fine], IDLE: NULL, "pre_compact": NULL, "post_compact": [fine]}
        )
        await stage.load(plugins=declared("bad", "good"), subagents={"kid": kid})
        loop = stage.loop
        session = await loop.session()
        for number in range(6):
            async with asyncio.timeout(60):
                end = await loop.run(session, f"Question {number}. " + "y" * 400)
            assert end.status == "completed"
        said = loop.model.texts()
        assert said[0].startswith("system: <plugin:good>good word</plugin:good>")
        assert any("<plugin:good>good word" in one for one in said[1:])
        assert "compaction.completed" in loop.audit.names()
        advance(loop, 61)
        assert loop.driver.idle.sweep() == [session]
        await until(lambda: any("transcript" in one for one in stage.received("good")))
        async with asyncio.timeout(60):
            await stage.supervisor.stop_all()


@requirement("PH-FAIL-10")
@pytest.mark.parametrize("greet", ["silent", "exit", "error", "raw:nonsense"])
async def test_no_plugin_holds_up_sessions_while_it_starts(tmp_path: Path, greet: str) -> None:
    """It hangs, dies or sends an invalid message at its start; sessions begin and end meanwhile."""
    async with session_stage(tmp_path, PlayedModel(say("ok"), say("ok"))) as stage:
        await stage.load()
        bad = stage.plugins.install({"greet": greet}, name="bad", hooks=[START])
        stage.supervisor.register(bad)
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(stage.supervisor.enable("bad"))
            async with asyncio.timeout(30):
                await stage.load(plugins=declared("bad"))
                assert (await stage.loop.talk("Hi")).status == "completed"
            if greet == "silent":
                assert not starting.done()
            await stage.supervisor.disable("bad")
        async with asyncio.timeout(30):
            assert (await stage.loop.talk("Again")).status == "completed"


@requirement("PH-HOOK-06", "PH-HOOK-07")
async def test_compaction_is_told_before_and_after_its_strategy(tmp_path: Path) -> None:
    """The strategy here is a model that sums up; it is asked between the two hooks."""
    seen: list[tuple[bool, ...]] = []

    async def sum_up(request: ModelRequest) -> ModelTurn:
        del request
        seen.append(tuple("messages_remaining" in one for one in stage.received("watch")[1:]))
        return say("It was about numbers.")

    talk = [say(f"Answer {number}. " + "x" * 400) for number in range(5)]
    model = PlayedModel(*talk, context_tokens=1000)
    async with session_stage(tmp_path, model) as stage:
        await stage.add("watch", {START: NULL, "pre_compact": NULL, "post_compact": NULL})
        await stage.add("elsewhere", {"pre_compact": NULL, "post_compact": NULL})
        await stage.load(
            plugins=declared("watch"),
            compaction={"strategy": "summarize"},
            subagents={
                "kid": {
                    "model": "default",
                    "system_prompt": "x",
                    "plugins": declared("elsewhere", hooks=["pre_compact", "post_compact"]),
                }
            },
        )
        session = await stage.loop.session()
        for number in range(4):
            await stage.loop.run(session, f"Question {number}. " + "y" * 400)
        assert stage.received("watch")[1:] == []
        model.turns[:] = [sum_up, say("Done.")]
        await stage.loop.run(session, "Question 4. " + "y" * 400)

        assert seen == [(True,)]
        before, after = stage.received("watch")[1:]
        assert before["strategy"] == after["strategy"] == "summarize"
        assert before["trigger"] == after["trigger"] == "threshold_crossed"
        assert before["messages_being_compacted"]
        assert stage.received("elsewhere") == []
        assert any("It was about numbers." in one for one in model.texts())


async def filled(stage: SessionStage, **primary: Any) -> str:
    """Talk until the window is nearly full; returns the session."""
    await stage.load(**primary)
    model = stage.loop.model
    model.context_tokens = 100_000
    model.turns[:] = [say(f"Answer {number}. " + "x" * 400) for number in range(5)]
    session = await stage.loop.session()
    for number in range(5):
        await stage.loop.run(session, f"Question {number}. " + "y" * 400)
    model.context_tokens = 1000
    model.turns[:] = [say("Done.")]
    return session


@requirement("PH-ROLE-03", "PH-ROLE-07", "PH-ROLE-08", "PH-ROLE-10", "PH-ROLE-12")
async def test_the_designated_compactor_replaces_the_window(tmp_path: Path) -> None:
    """Exactly its list goes to the model, exactly its marks are made, no strategy runs."""
    async with session_stage(tmp_path, PlayedModel()) as stage:
        await stage.add_compactor("smart", "good")
        session = await filled(
            stage,
            plugins=declared("smart"),
            compaction={"strategy": "summarize", "delegate": {"plugin": "smart"}},
        )
        before = await stage.loop.transcript.entries(session)
        asked = len(stage.loop.model.requests)
        await stage.loop.run(session, "Last.")

        assert len(stage.loop.model.requests) == asked + 1  # nobody summed up
        (told,) = stage.received("smart")
        assert told["role"] == "compactor"
        going = [one["id"] for one in told["messages_being_compacted"]]
        staying = [one["content"] for one in told["messages_remaining"]]
        assert [one.partition(": ")[2] for one in stage.loop.model.texts()[1:]] == [
            staying[0],
            f"summary of {len(going)}",
            *staying[1:],
        ]
        after = await stage.loop.transcript.entries(session)
        assert [one.id for one in after if one.superseded_by is not None] == going
        assert len(after) > len(before)
        (done,) = stage.loop.audit.of("compaction.completed")
        assert (done["strategy"], done["fallback"], done["summary"]) == (
            "summarize",
            False,
            "what was said",
        )
        assert stage.loop.audit.of("compaction.failed") == []
        # The next run, from the store, sees the same window.
        stage.loop.model.turns[:] = [say("Again.")]
        first = stage.loop.model.texts()
        stage.loop.model.context_tokens = 100_000
        await stage.loop.run(session, "More.")
        assert stage.loop.model.texts()[: len(first)] == first


@requirement("PH-ROLE-07")
async def test_a_compactor_that_is_not_designated_is_not_asked(tmp_path: Path) -> None:
    """The configured strategy runs."""
    async with session_stage(tmp_path, PlayedModel()) as stage:
        await stage.add_compactor("smart", "good")
        session = await filled(stage, plugins=declared("smart"))
        await stage.loop.run(session, "Last.")
        assert stage.received("smart") == []
        (done,) = stage.loop.audit.of("compaction.completed")
        assert (done["strategy"], done["fallback"]) == ("drop", False)


@requirement(
    "PH-ROLE-11",
    "PH-ROLE-13",
    "PH-ROLE-15",
    "PH-ROLE-16",
    "PH-ROLE-17",
    "PH-ROLE-18",
    "PH-ROLE-19",
    "PH-AMB-51",
)
@pytest.mark.parametrize(
    "how",
    [
        "no_role",
        "observer",
        "no_messages",
        "malformed",
        "odd_role",
        "no_superseded",
        "foreign",
        "drops_keep",
        "error",
        "hang",
        "exit",
        "disabled",
    ],
)
async def test_a_compactor_that_fails_leads_to_drop(tmp_path: Path, how: str) -> None:
    """One failure chain in the audit log, and the session goes on with the old messages gone."""
    async with session_stage(tmp_path, PlayedModel()) as stage:
        await stage.add_compactor("smart", how, hook_timeout_sec=1)
        session = await filled(
            stage, plugins=declared("smart"), compaction={"delegate": {"plugin": "smart"}}
        )
        if how == "disabled":
            await stage.supervisor.disable("smart")
        async with asyncio.timeout(60):
            end = await stage.loop.run(session, "Last.")

        assert (end.status, end.text) == ("completed", "Done.")
        audit = stage.loop.audit
        chain = [name for name in audit.names() if name.startswith("compaction.")][:3]
        assert chain == ["compaction.triggered", "compaction.failed", "compaction.completed"]
        ids = {one["compaction_id"] for name in chain for one in audit.of(name)}
        assert len(ids) == 1
        (done,) = audit.of("compaction.completed")
        assert (done["strategy"], done["fallback"]) == ("drop", True)
        texts = stage.loop.model.texts()
        assert texts[1].startswith("user: Question 0.")
        assert texts[-1] == "user: Last."
        assert not any("summary of" in one for one in texts)
        assert "earlier messages" in texts[2]
        entries = await stage.loop.transcript.entries(session)
        marked = [one for one in entries if one.superseded_by is not None]
        assert marked
        assert "someone-elses" not in {one.id for one in marked}
        dropped = await stage.audited("compactor_dropped_always_keep")
        assert len(dropped) == (1 if how == "drops_keep" else 0)


async def test_what_a_plugin_cannot_do_now_is_blocked_and_works_again_later(
    tmp_path: Path,
) -> None:
    """A crash in the middle of a session."""
    tool = {
        "name": "look",
        "description": "Looks.",
        "parameters_schema": {"type": "object", "properties": {}},
    }
    calls = {"mem.look": [{"result": {"seen": True}}]}
    model = PlayedModel(
        say("", call("mem_look")), say("ok"), say("", call("mem_look")), say("oh"),
        say("", call("mem_look")), say("good"),
    )  # fmt: skip
    async with session_stage(tmp_path, model) as stage:
        await stage.add("mem", {START: NULL}, tools=[tool], calls=calls)
        await stage.load(plugins=declared("mem"))
        loop = stage.loop
        session = await loop.session()
        await loop.run(session, "One")
        assert model.texts()[-1] == 'result mem_look: {"seen":true}'

        plugin = stage.supervisor.get("mem")
        naps = len(stage.plugins.naps)
        for pid in stage.plugins.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await stage.plugins.until_event("plugin.crashed")
        await stage.plugins.napping(naps + 1)
        await loop.run(session, "Two")
        assert model.texts()[-1].startswith("error mem_look: [BLOCKED]")
        assert "plugin_unavailable" in model.texts()[-1]

        stage.plugins.wake(2)  # one may go to the health check that waits, too
        await until(lambda: plugin.state.value == "running")
        await loop.run(session, "Three")
        assert model.texts()[-1] == 'result mem_look: {"seen":true}'


async def test_a_session_of_a_plugin_project_keeps_its_id_in_every_hook(tmp_path: Path) -> None:
    """Project, agent and session of `_context` are those of the session."""
    async with session_stage(tmp_path, PlayedModel(say("ok"))) as stage:
        await stage.add("mem", {START: NULL})
        await stage.load(plugins=declared("mem"))
        end = await stage.loop.talk("Hi")
        (told,) = stage.received("mem")
        context = told["_context"]
        assert (context["project_id"], context["agent_path"], context["session_id"]) == (
            PROJECT,
            "primary",
            end.session_id,
        )
