"""The loop from a message to the end of its run, on a real store and desk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from fakes.loop_lab import PROJECT, loop_lab
from fakes.played_model import PlayedModel, call, hang, say, shown
from fakes.tool_lab import Spy, make_tool
from fakes.work_lab import until
from kaged.base import JsonValue
from kaged.models.errors import ModelContextExceeded, ModelError, ModelUnavailable
from kaged.models.turn import AssistantMessage, ModelEvent, ModelRequest, ModelToolCall, ModelTurn
from kaged.sessions.loop import MAX_CALLS_PER_TURN
from kaged.sessions.transforms import TransformVeto
from kaged.tools import ToolInvocation as DeskCall
from raising import raises_code
from requirements import requirement

ALL_ON = "primary: {model: default, system_prompt: You help., tools: {'*': {enabled: true}}}\n"
WAIT_S = 30


@contextlib.asynccontextmanager
async def capturing_logs() -> AsyncGenerator[None]:
    """Keep the log's traceback of a fault of ours out of the way; drawing it takes seconds."""
    with structlog.testing.capture_logs():
        yield


async def test_an_answer_without_tools_ends_the_run(tmp_path: Path) -> None:
    """The plainest run."""
    async with loop_lab(tmp_path, PlayedModel(say("Hello."))) as lab:
        end = await lab.talk("Hi")

        assert (end.status, end.text, end.steps) == ("completed", "Hello.", 1)
        assert await lab.entries(end.session_id) == ["user: Hi", "assistant: Hello."]
        assert lab.model.texts() == ["system: You help.", "user: Hi"]
        record = await lab.store.agent_runs.get(end.run_id)
        assert (record.status, record.steps) == ("completed", 1)
        assert (await lab.store.sessions.of_id(end.session_id)).status == "idle"


@requirement("AT-SESS-05")
async def test_the_loop_goes_on_until_the_model_stops_calling_tools(tmp_path: Path) -> None:
    """Model, tools, model: the result of a call is there when the model is asked again."""
    model = PlayedModel(say("I look.", call("file_peek", {"path": "a"})), say("Seen."))
    peek = make_tool("file.peek", handler=Spy({"seen": 1}), properties={"path": {"type": "string"}})
    async with loop_lab(tmp_path, model, tools=[peek], project=ALL_ON) as lab:
        end = await lab.talk("Look")

        assert (end.status, end.text, end.steps) == ("completed", "Seen.", 2)
        assert await lab.entries(end.session_id) == [
            "user: Look",
            "assistant: I look. <file.peek>",
            'tool_result: [file.peek] {"seen":1}',
            "assistant: Seen.",
        ]
        assert model.texts()[1:] == [
            "user: Look",
            "assistant: I look. <file_peek>",
            'result file_peek: {"seen":1}',
        ]
        assert [one.name for one in lab.told("run.started", "turn.started", "turn.ended")] == [
            "run.started",
            *["turn.started", "turn.ended"] * 2,
        ]


@requirement("AT-SESS-05", "AT-DSL-11")
async def test_a_model_that_never_stops_is_ended_by_max_steps(tmp_path: Path) -> None:
    """The other endings of the loop: as many steps as the agent may take."""
    turns = [say("again", call("file_peek")) for _ in range(9)]
    text = ALL_ON.replace("{model", "{max_steps: 3, model", 1)
    async with loop_lab(
        tmp_path, PlayedModel(*turns), tools=[make_tool("file.peek")], project=text
    ) as lab:
        end = await lab.talk("Go")

        assert (end.status, end.steps) == ("failed", 3)
        assert end.error is not None
        assert end.error["code"] == "step_limit_reached"
        assert len(lab.model.requests) == 3
        lab.model.turns[:] = [say("Done at last.")]
        again = await lab.run(end.session_id, "Go on")
        assert again.status == "completed"


@requirement("AT-SESS-02")
async def test_a_session_has_one_run_at_a_time(tmp_path: Path) -> None:
    """The second start is refused, and nothing of it is stored."""
    async with loop_lab(tmp_path, PlayedModel(hang(), say("ok"))) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "One")
        await asyncio.wait_for(lab.model.asked.wait(), WAIT_S)
        assert (await lab.store.agent_runs.get(run_id)).status == "running"
        assert (await lab.store.sessions.of_id(session)).status == "running"

        with raises_code("session_busy"):
            await lab.driver.send(session, "Two")

        assert await lab.entries(session) == ["user: One"]
        await lab.driver.cancel(session)
        assert (await lab.run(session, "Three")).status == "completed"
        found, total = await lab.store.agent_runs.page(session, 10, 0)
        assert [one.status for one in found] == ["completed", "cancelled"]
        assert total == 2
        assert all(one.ended_at_ms is not None for one in found)


@requirement("AT-SESS-06")
async def test_calls_of_one_step_run_together_and_answer_in_order(tmp_path: Path) -> None:
    """Each waits until the other has started; the first asked for ends last."""
    first, second, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: DeskCall) -> JsonValue:
        first.set()
        await asyncio.wait_for(second.wait(), WAIT_S)
        await asyncio.wait_for(ended.wait(), WAIT_S)
        return "slow"

    async def quick(_: DeskCall) -> JsonValue:
        second.set()
        await asyncio.wait_for(first.wait(), WAIT_S)
        ended.set()
        return "quick"

    tools = [make_tool("file.slow", handler=slow), make_tool("file.quick", handler=quick)]
    model = PlayedModel(say("", call("file_slow"), call("file_quick")), say("ok"))
    async with loop_lab(tmp_path, model, tools=tools, project=ALL_ON) as lab:
        assert (await lab.talk("Go")).status == "completed"

        assert model.texts()[-2:] == ["result file_slow: slow", "result file_quick: quick"]


async def test_calls_that_change_something_wait_for_each_other(tmp_path: Path) -> None:
    """In the order of asking, one at a time."""
    running: list[str] = []
    order: list[str] = []

    def handler(name: str) -> Any:
        async def work(_: DeskCall) -> JsonValue:
            assert not running
            running.append(name)
            await asyncio.sleep(0)
            running.remove(name)
            order.append(name)
            return name

        return work

    tools = [make_tool(f"file.{one}", handler=handler(one), changes=True) for one in ("a", "b")]
    model = PlayedModel(say("", call("file_b"), call("file_a"), call("file_b")), say("ok"))
    async with loop_lab(tmp_path, model, tools=tools, project=ALL_ON) as lab:
        assert (await lab.talk("Go")).status == "completed"
        assert order == ["b", "a", "b"]


async def test_nonsense_of_the_model_becomes_errors_that_it_sees(tmp_path: Path) -> None:
    """An unknown tool, arguments that are no JSON, wrong arguments, a call without an id."""
    model = PlayedModel(
        say(
            "",
            call("no_such_tool"),
            call("file_peek", raw='{"path": '),
            call("file_peek", {"nope": 1}),
            ModelToolCall("", "file_peek", {}),
            ModelToolCall("", "file_peek", {}),
        ),
        say("Sorry."),
    )
    async with loop_lab(tmp_path, model, tools=[make_tool("file.peek")], project=ALL_ON) as lab:
        end = await lab.talk("Go")

        assert end.status == "completed"
        results = model.texts()[3:]
        assert [one.partition(":")[0] for one in results] == [
            "error no_such_tool",
            "error file_peek",
            "error file_peek",
            "result file_peek",
            "result file_peek",
        ]
        assert "tool_not_found" in results[0]
        assert "invalid_params" in results[1]
        assert "invalid_params" in results[2]
        asked = model.requests[-1].messages[2]
        assert isinstance(asked, AssistantMessage)
        assert len({one.id for one in asked.tool_calls}) == 5


async def test_a_turn_with_more_calls_than_anybody_needs_is_cut(tmp_path: Path) -> None:
    """The model sees what was made of it."""
    many = tuple(call("file_peek") for _ in range(MAX_CALLS_PER_TURN + 20))
    spy = Spy()
    model = PlayedModel(say("", *many), say("ok"))
    async with loop_lab(
        tmp_path, model, tools=[make_tool("file.peek", handler=spy)], project=ALL_ON
    ) as lab:
        assert (await lab.talk("Go")).status == "completed"
        assert len(spy.calls) == MAX_CALLS_PER_TURN


async def test_a_stream_that_breaks_off_fails_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """The next message goes on from what is stored."""

    class Cut(PlayedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
            self.requests.append(request)
            if len(self.requests) > 1:
                async for event in super().stream(request):
                    yield event

    async with loop_lab(tmp_path, Cut(say("Here."))) as lab:
        end = await lab.talk("Hi")
        assert (end.status, end.error and end.error["code"]) == ("failed", "model_bad_answer")
        assert await lab.entries(end.session_id) == ["user: Hi"]

        again = await lab.run(end.session_id, "Still there?")
        assert again.text == "Here."
        assert lab.model.texts()[1:] == ["user: Hi", "user: Still there?"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ModelUnavailable("gone"), "model_unavailable"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
async def test_a_model_that_fails_ends_the_run_with_its_error(
    tmp_path: Path, failure: Exception, code: str
) -> None:
    """With a code of its own, or as a fault of ours."""
    async with loop_lab(tmp_path, PlayedModel(failure)) as lab, capturing_logs():
        end = await lab.talk("Hi")
        assert (end.status, end.error and end.error["code"]) == ("failed", code)
        assert (await lab.store.agent_runs.get(end.run_id)).error == end.error


async def test_an_unknown_model_is_refused_before_anything_begins(tmp_path: Path) -> None:
    """Whoever sends the message is told, and the session is as it was."""
    async with loop_lab(tmp_path) as lab:
        session = await lab.session()
        with raises_code("model_unknown", ModelError):
            await lab.driver.send(session, "Hi", model="nobody")
        assert await lab.entries(session) == []
        assert (await lab.store.sessions.of_id(session)).status == "idle"


async def test_a_window_too_large_for_the_model_is_compacted_and_asked_again(
    tmp_path: Path,
) -> None:
    """Without the user noticing more than a smaller window."""
    talk = [say(f"Answer {number}.") for number in range(8)]
    async with loop_lab(tmp_path, PlayedModel(*talk)) as lab:
        session = await lab.session()
        for number in range(8):
            await lab.run(session, f"Question {number}.")
        lab.model.turns[:] = [ModelContextExceeded("too large"), say("Better.")]
        end = await lab.run(session, "And now?")

        assert end.text == "Better."
        assert len(lab.model.requests[-1].messages) < len(lab.model.requests[-2].messages)
        assert lab.model.texts()[1] == "user: Question 0."
        assert "compaction.completed" in lab.audit.names()


@requirement("AT-SESS-18")
async def test_a_run_can_be_cancelled_during_a_model_call(tmp_path: Path) -> None:
    """The stream is closed, the run is over, the session can go on."""
    async with loop_lab(tmp_path, PlayedModel(hang(), say("ok"))) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Hi")
        await asyncio.wait_for(lab.model.asked.wait(), WAIT_S)

        assert await lab.driver.cancel(session)

        assert (await lab.driver.wait(run_id)).status == "cancelled"
        assert lab.model.closed == 1
        assert (await lab.store.sessions.of_id(session)).status == "idle"
        assert not await lab.driver.cancel(session)
        assert (await lab.run(session, "Again")).status == "completed"


@requirement("AT-SESS-13")
async def test_a_run_cancelled_during_a_tool_call_cleans_up_and_says_so(tmp_path: Path) -> None:
    """The handler is ended, what a run leaves behind is cleared, the model learns of it later."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(_: DeskCall) -> JsonValue:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return None

    model = PlayedModel(say("", call("file_work")), say("ok"))
    tools = [make_tool("file.work", handler=work)]
    async with loop_lab(tmp_path, model, tools=tools, project=ALL_ON) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        await asyncio.wait_for(begun.wait(), WAIT_S)

        assert await lab.driver.cancel(run_id)

        assert ended.is_set()
        assert lab.cleaned == [(PROJECT, run_id)]
        assert (await lab.entries(session))[-1].startswith("tool_result: [error file.work] [canc")
        assert (await lab.run(session, "And?")).text == "ok"
        assert lab.cleaned[1:] != []


async def test_what_a_crash_cut_off_is_said_so_and_never_made_again(tmp_path: Path) -> None:
    """A call without a result gets one on resume; nothing runs twice."""
    spy = Spy()
    begun = asyncio.Event()

    async def work(_: DeskCall) -> JsonValue:
        spy.calls.append(_)
        begun.set()
        await asyncio.Event().wait()
        return None

    tools = [make_tool("file.work", handler=work), make_tool("file.peek")]
    model = PlayedModel(say("", call("file_peek"), call("file_work")))
    async with loop_lab(tmp_path, model, tools=tools, project=ALL_ON) as lab:
        session = await lab.session()
        await lab.driver.send(session, "Go")
        await asyncio.wait_for(begun.wait(), WAIT_S)
        # Until the quick call has its result on disk, too.
        await until(
            lambda: any(one.data["role"] == "tool_result" for one in lab.told("entry.appended"))
        )
    async with loop_lab(tmp_path, PlayedModel(say("I see.")), tools=tools, project=ALL_ON) as lab:
        await lab.service.recover()
        found, _ = await lab.store.agent_runs.page(session, 5, 0)
        assert [one.status for one in found] == ["interrupted"]

        end = await lab.driver.wait(await lab.driver.resume(session))

        assert end.text == "I see."
        assert len(spy.calls) == 1
        assert lab.model.texts()[3:] == [
            'result file_peek: {"ok":true}',
            shown(lab.model.requests[-1].messages[-1]),
        ]
        assert "[interrupted]" in lab.model.texts()[-1]
        with raises_code("nothing_to_resume"):
            await lab.driver.resume(session)


@requirement("AT-SESS-16", "AT-RES-02")
async def test_a_changed_project_changes_later_sessions_only(tmp_path: Path) -> None:
    """Tools, cage and prompt of a session are those of its start."""
    tools = [make_tool("file.peek"), make_tool("file.poke")]
    peek = "primary: {model: default, system_prompt: Old., tools: {file.peek: {enabled: true}}}\n"
    poke = (
        "primary: {model: default, system_prompt: New., cage: {fs: []},"
        " tools: {file.poke: {enabled: true}}}\n"
    )
    seen: list[Any] = []

    async def look(request: ModelRequest) -> ModelTurn:
        seen.append(sorted(one.name for one in request.tools if one.name.startswith("file")))
        return say("", call("file_peek"), call("file_poke"))

    async with loop_lab(tmp_path, PlayedModel(look, say("ok")), tools=tools, project=peek) as lab:
        session = await lab.session()
        await lab.run(session, "One")
        lab.load(poke)
        lab.model.turns[:] = [look, say("ok")]
        await lab.run(session, "Two")

        assert seen == [["file_peek"]] * 2
        assert lab.model.texts()[0] == "system: Old."
        assert [one.partition(":")[0] for one in lab.model.texts()[-2:]] == [
            "result file_peek",
            "error file_poke",
        ]
        assert all(one.context.cage_policy is None for one in lab.tool_calls_made("file.peek"))

        lab.model.turns[:] = [look, say("ok")]
        await lab.talk("Three")
        assert seen[-1] == ["file_poke"]
        assert lab.model.texts()[0] == "system: New."


async def test_the_words_of_a_model_are_told_as_they_come(tmp_path: Path) -> None:
    """And the turn ends after what it said is on disk."""
    async with loop_lab(tmp_path, PlayedModel(say("Hello."))) as lab:
        await lab.talk("Hi")

        names = [one.name for one in lab.events]
        assert names.index("text.delta") < names.index("turn.ended")
        stored = [
            at
            for at, one in enumerate(lab.events)
            if one.name == "entry.appended" and one.data["role"] == "assistant"
        ]
        assert stored[0] < names.index("turn.ended") < names.index("run.ended")


async def test_a_move_to_another_session_between_turns_ends_the_run(tmp_path: Path) -> None:
    """Whoever went elsewhere does not pay for what goes on behind their back."""
    model = PlayedModel(say("", call("file_peek")), say("never asked"))

    async def rewind(_: DeskCall) -> JsonValue:
        lab.navigation.request_fork_to(session)
        return "asked"

    tools = [make_tool("file.peek", handler=rewind)]
    async with loop_lab(tmp_path, model, tools=tools, project=ALL_ON) as lab:
        session = await lab.session(current=True)
        end = await lab.run(session, "Go")
        assert (end.status, end.finish_reason) == ("completed", "switched")
        assert len(model.requests) == 1
        (moved,) = lab.told("session.switched")
        assert await lab.service.current(PROJECT) == moved.data["to"] != session


async def test_scripts_see_and_change_what_a_run_does(tmp_path: Path) -> None:
    """The request, and a call."""
    spy = Spy("plain")
    model = PlayedModel(
        say("", call("file_peek", {"path": "a"}), call("file_peek", {"path": "no"})), say("ok")
    )
    peek = make_tool("file.peek", handler=spy, properties={"path": {"type": "string"}})
    async with loop_lab(tmp_path, model, tools=[peek], project=ALL_ON) as lab:
        transforms = lab.driving.transforms

        async def elsewhere(_session: str, _name: str, args: Any) -> Any:
            return TransformVeto("not there") if args["path"] == "no" else {"path": "b"}

        async def context(_session: str, draft: Any) -> Any:
            added = {"role": "user", "content": "(by the way)"}
            return replace(draft, messages=[*draft.messages, added])

        transforms.on_before_tool_call(elsewhere)
        transforms.on_context(context)
        end = await lab.talk("Look")

        assert end.status == "completed"
        assert model.texts(0)[1:] == ["user: Look", "user: (by the way)"]
        assert [one.args for one in spy.calls] == [{"path": "b"}]
        assert model.texts()[3:] == [
            "result file_peek: plain",
            "error file_peek: [BLOCKED] not there",
            "user: (by the way)",
        ]
        assert all("by the way" not in one for one in await lab.entries(end.session_id))


async def test_a_project_that_is_let_go_takes_its_runs_with_it(tmp_path: Path) -> None:
    """They are cancelled, not left hanging."""
    async with loop_lab(tmp_path, PlayedModel(hang())) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Hi")
        await asyncio.wait_for(lab.model.asked.wait(), WAIT_S)
        lab.driver.project_unloaded(PROJECT)
        assert (await lab.driver.wait(run_id)).status == "cancelled"


async def test_an_agent_that_the_project_has_not_is_refused(tmp_path: Path) -> None:
    """Before anything begins."""
    async with loop_lab(tmp_path) as lab:
        session = await lab.session()
        with raises_code("agent_not_found"):
            await lab.driver.send(session, "Hi", agent="primary.subagents.nobody")
        assert await lab.entries(session) == []
