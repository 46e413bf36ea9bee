"""Questions to the operator: runs pause, sessions wait, answers go on in a new run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.loop_lab import PROJECT, LoopLab, loop_lab
from fakes.played_model import PlayedModel, call, hang, say
from fakes.tool_lab import Spy, make_tool
from fakes.work_lab import until
from kaged.models.turn import ModelTurn
from kaged.sessions.run_values import RunEnd
from kaged.toolbox.project.answers import CheckpointDecision, OperatorAnswer
from raising import raises_code
from requirements import requirement

WAIT_S = 30
QUESTION = {"questions": [{"id": "q", "title": "Which?", "options": ["a", "b"]}]}
FORM = {"fields": [{"name": "who", "label": "Who?", "type": "text"}]}
TREE = """
primary:
  model: default
  system_prompt: You lead.
  tools: {file.peek: {enabled: true}}
  subagents:
    coder:
      model: small
      system_prompt: You code.
      tools: {kaged.checkpoint: {enabled: true}, file.peek: {enabled: true}}
    other: {model: other, system_prompt: You wait.}
"""


async def answer(lab: LoopLab, end: RunEnd, given: OperatorAnswer) -> RunEnd:
    """Answer what a run asked and wait for the run that goes on."""
    assert end.interaction is not None
    request_id = str(end.interaction["request_id"])
    await lab.work.interactions.answer(PROJECT, request_id, given, "operator")
    async with asyncio.timeout(WAIT_S):
        return await lab.driver.follow(end)


@requirement("AT-ASK-03", "AT-ASK-12")
@pytest.mark.parametrize(
    ("tool", "params", "kind"), [("kaged_ask", QUESTION, "ask"), ("kaged_form", FORM, "form")]
)
async def test_asking_ends_the_run_and_lets_the_session_wait(
    tmp_path: Path, tool: str, params: Any, kind: str
) -> None:
    """One event carries the questions; the run's result has the signal; the call is on record."""
    async with loop_lab(tmp_path, PlayedModel(say("", call(tool, params)))) as lab:
        end = await lab.talk("Go")

        assert end.status == "paused"
        assert end.interaction is not None
        assert end.interaction["kind"] == kind
        payload = end.interaction["payload"]
        session = await lab.store.sessions.of_id(end.session_id)
        assert session.status == "checkpoint"
        assert str(session.detail).startswith("interaction:")
        assert (await lab.store.agent_runs.get(end.run_id)).status == "paused"
        assert [name for name, _ in lab.announced] == ["attention.required"]
        assert lab.announced[0][1]["payload"] == payload
        called = lab.audit.of("tool.called")
        assert [one["tool_name"] for one in called] == [f"kaged.{kind}"]
        assert [one.tool_name for one in lab.outcomes] == [f"kaged.{kind}"]
        assert len(lab.model.requests) == 1


@requirement("AT-ASK-12")
async def test_a_child_may_not_ask(tmp_path: Path) -> None:
    """The gates come first: the scope of the tool, and then its parameters."""
    root = PlayedModel(say("", call("agent-coder", {"message": "Ask"})), say("ok"))
    small = PlayedModel(say("", call("kaged.ask", QUESTION)), say("I may not."), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=TREE) as lab:
        assert (await lab.talk("Go")).status == "completed"
        assert "principal_scope_violation" in small.texts()[-1]
        lab.model.turns[:] = [say("", call("kaged_ask", {"questions": []})), say("oh")]
        assert (await lab.talk("Go")).status == "completed"
        assert "invalid_params" in lab.model.texts()[-1]


@requirement("AT-ASK-04", "AT-SESS-10")
async def test_the_answer_is_the_result_of_the_question_in_a_new_run(tmp_path: Path) -> None:
    """Same session, earlier messages, another run."""
    states: list[str] = []
    model = PlayedModel(say("", call("kaged_ask", QUESTION)), say("Then b."))
    async with loop_lab(tmp_path, model) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        states.append((await lab.store.sessions.of_id(session)).status)
        end = await lab.driver.wait(run_id)
        states.append((await lab.store.sessions.of_id(session)).status)
        model.turns[:] = [hang()]
        model.asked.clear()
        assert end.interaction is not None
        request_id = str(end.interaction["request_id"])
        await lab.work.interactions.answer(
            PROJECT, request_id, OperatorAnswer({"q": "b"}), "operator"
        )
        await asyncio.wait_for(model.asked.wait(), WAIT_S)
        states.append((await lab.store.sessions.of_id(session)).status)

        assert states == ["running", "checkpoint", "running"]
        assert lab.cleaned == [(PROJECT, run_id)]
        found, _ = await lab.store.agent_runs.page(session, 5, 0)
        assert [one.status for one in found] == ["running", "paused"]
        assert len({one.id for one in found}) == 2
        assert model.texts()[1:3] == ["user: Go", "assistant: <kaged_ask>"]
        assert model.texts()[3].startswith("result kaged_ask: ")
        assert '"answers":{"q":"b"}' in model.texts()[3]
        assert await lab.store.interactions.undelivered(session) == []


@requirement("AT-ASK-08", "AT-ASK-09")
@pytest.mark.parametrize(
    ("given", "word"),
    [
        (OperatorAnswer(decision=CheckpointDecision.APPROVE), "approve"),
        (OperatorAnswer(decision=CheckpointDecision.REJECT, text="No, thanks."), "No, thanks."),
    ],
)
async def test_a_child_at_a_checkpoint_pauses_the_session_and_goes_on_with_the_decision(
    tmp_path: Path, given: OperatorAnswer, word: str
) -> None:
    """Its window is what it was, and its parent waits for its result all along."""
    root = PlayedModel(
        say("", call("agent-coder", {"message": "Careful"}), call("file_peek")), say("Good.")
    )
    small = PlayedModel(
        say("Shall I?", call("kaged_checkpoint", {"message": "May I?", "detail": "rm"})),
        say("I did as told."),
        alias="small",
    )
    async with loop_lab(
        tmp_path, root, models={"small": small}, project=TREE, tools=[make_tool("file.peek")]
    ) as lab:
        end = await lab.talk("Go")
        assert end.status == "paused"
        session = await lab.store.sessions.of_id(end.session_id)
        assert session.status == "checkpoint"
        assert end.interaction is not None
        assert end.interaction["payload"] == {"message": "May I?", "detail": "rm"}

        end = await answer(lab, end, given)

        assert (end.status, end.text) == ("completed", "Good.")
        assert small.texts()[:3] == [
            "system: You code.",
            "user: Careful",
            "assistant: Shall I? <kaged_checkpoint>",
        ]
        assert word in small.texts()[3]
        assert root.texts()[-2] == "result agent-coder: I did as told."


@requirement("AT-ASK-10")
async def test_what_another_agent_asks_for_while_the_session_pauses_is_not_made(
    tmp_path: Path,
) -> None:
    """Its call gets a result that says so; none stays open."""
    spy, paused = Spy(), asyncio.Event()

    async def late(_: Any) -> ModelTurn:
        await asyncio.wait_for(paused.wait(), WAIT_S)
        return say("", call("file_peek"))

    root = PlayedModel(
        say("", call("agent-coder", {"message": "a"}), call("agent-other", {"message": "b"})),
        say("Good."),
    )
    small = PlayedModel(say("", call("kaged_checkpoint", {"message": "May I?"})), say("I did."),
                        alias="small")  # fmt: skip
    other = PlayedModel(late, say("Later."), alias="other")
    project = TREE.replace("You wait.}", "You wait., tools: {file.peek: {enabled: true}}}")
    async with loop_lab(
        tmp_path, root, models={"small": small, "other": other}, project=project,
        tools=[make_tool("file.peek", handler=spy)],
    ) as lab:  # fmt: skip
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        await until(lambda: bool(lab.tool_calls_made("kaged.checkpoint")))
        paused.set()
        end = await lab.driver.wait(run_id)
        assert end.status == "paused"
        assert spy.calls == []
        (said,) = [one for one in await lab.entries(session) if "file.peek" in one and
                   one.startswith("tool_result")]  # fmt: skip
        assert "not made" in said

        end = await answer(lab, end, OperatorAnswer(decision=CheckpointDecision.APPROVE))
        assert (end.status, end.text) == ("completed", "Good.")
        assert spy.calls == []


@requirement("AT-ASK-10")
async def test_one_question_at_a_time_and_nothing_else_meanwhile(tmp_path: Path) -> None:
    """What stands behind a question in the same step is not done, whatever the answer."""
    spy = Spy()
    model = PlayedModel(
        say(
            "",
            call("file_peek"),
            call("kaged_ask", QUESTION),
            call("kaged_checkpoint", {"message": "And?"}),
            call("file_peek"),
        ),
        say("ok"),
    )
    async with loop_lab(
        tmp_path, model, tools=[make_tool("file.peek", handler=spy)], project=TREE,
        models={"small": PlayedModel(), "other": PlayedModel()},
    ) as lab:  # fmt: skip
        end = await lab.talk("Go")
        assert end.status == "paused"
        assert len(spy.calls) == 1
        with raises_code("interaction_pending"):
            await lab.driver.send(end.session_id, "Hello?")
        with raises_code("interaction_pending"):
            await lab.driver.resume(end.session_id)
        assert len(model.requests) == 1

        end = await answer(lab, end, OperatorAnswer({"q": "a"}))

        assert end.status == "completed"
        assert len(spy.calls) == 1
        results = model.texts()[3:]
        assert [one.partition(":")[0] for one in results] == [
            "result file_peek",
            "result kaged_ask",
            "error kaged_checkpoint",
            "error file_peek",
        ]
        assert "interaction_pending" in results[2]
        assert "session_paused" in results[3]


async def test_a_sibling_stops_when_the_session_begins_to_wait(tmp_path: Path) -> None:
    """It goes on from its own window when the answer is there; nothing of it is lost."""
    asked, release = asyncio.Event(), asyncio.Event()

    async def late(request: Any) -> Any:
        asked.set()
        await asyncio.wait_for(release.wait(), WAIT_S)
        return say("half", call("file_peek"))

    root = PlayedModel(
        say("", call("agent-other", {"message": "B"}), call("agent-coder", {"message": "A"})),
        say("Both."),
    )

    async def ask_after_sibling(request: Any) -> Any:
        await asyncio.wait_for(asked.wait(), WAIT_S)
        return say("", call("kaged_checkpoint", {"message": "May I?"}))

    small = PlayedModel(ask_after_sibling, say("A done."), alias="small")
    other = PlayedModel(late, say("B done."), alias="other")
    async with loop_lab(
        tmp_path, root, models={"small": small, "other": other}, project=TREE
    ) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        await until(lambda: bool(lab.announced))
        release.set()
        end = await lab.driver.wait(run_id)
        assert end.status == "paused"
        assert len(other.requests) == 1

        end = await answer(lab, end, OperatorAnswer(decision=CheckpointDecision.APPROVE))

        assert end.text == "Both."
        assert root.texts()[-2:] == ["result agent-other: B done.", "result agent-coder: A done."]
        assert "not made" in other.texts()[-1]


async def test_a_sibling_that_is_done_when_the_session_begins_to_wait_is_not_asked_again(
    tmp_path: Path,
) -> None:
    """Its last words were its result, and stay it."""
    asked, release = asyncio.Event(), asyncio.Event()

    async def late(request: Any) -> Any:
        asked.set()
        await asyncio.wait_for(release.wait(), WAIT_S)
        return say("B done.")

    async def ask_after_sibling(request: Any) -> Any:
        await asyncio.wait_for(asked.wait(), WAIT_S)
        return say("", call("kaged_checkpoint", {"message": "May I?"}))

    root = PlayedModel(
        say("", call("agent-other", {"message": "B"}), call("agent-coder", {"message": "A"})),
        say("Both."),
    )
    small = PlayedModel(ask_after_sibling, say("A done."), alias="small")
    other = PlayedModel(late, alias="other")
    async with loop_lab(
        tmp_path, root, models={"small": small, "other": other}, project=TREE
    ) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        await until(lambda: bool(lab.announced))
        release.set()
        end = await lab.driver.wait(run_id)
        assert end.status == "paused"

        end = await answer(lab, end, OperatorAnswer(decision=CheckpointDecision.APPROVE))

        assert end.text == "Both."
        assert len(other.requests) == 1
        assert root.texts()[-2:] == ["result agent-other: B done.", "result agent-coder: A done."]


@requirement("AT-ASK-11")
async def test_a_question_outlives_the_daemon(tmp_path: Path) -> None:
    """Asked of one, answered to the next."""
    async with loop_lab(tmp_path, PlayedModel(say("", call("kaged_ask", QUESTION)))) as lab:
        end = await lab.talk("Go")
    async with loop_lab(tmp_path, PlayedModel(say("Then a."))) as lab:
        await lab.service.recover()
        assert (await lab.store.sessions.of_id(end.session_id)).status == "checkpoint"

        end = await answer(lab, end, OperatorAnswer({"q": "a"}))

        assert (end.status, end.text) == ("completed", "Then a.")
        assert '"q":"a"' in lab.model.texts()[-1]


async def test_an_answer_that_no_run_took_up_is_taken_up_by_the_next_daemon(
    tmp_path: Path,
) -> None:
    """The crash came between the answer and the run."""
    async with loop_lab(tmp_path, PlayedModel(say("", call("kaged_ask", QUESTION)))) as lab:
        end = await lab.talk("Go")
        assert end.interaction is not None
        request_id = str(end.interaction["request_id"])
    async with loop_lab(tmp_path) as lab:
        lab.models.by_alias.clear()  # so that no run can begin
        await lab.work.interactions.answer(
            PROJECT, request_id, OperatorAnswer({"q": "a"}), "operator"
        )
        assert (await lab.store.sessions.of_id(end.session_id)).status == "idle"
    async with loop_lab(tmp_path, PlayedModel(say("Then a."))) as lab:
        assert await lab.driver.recover() == 1
        async with asyncio.timeout(WAIT_S):
            after = await lab.driver.follow(end)
        assert after.text == "Then a."
        assert await lab.driver.recover() == 0


async def test_a_withdrawn_question_is_an_error_that_the_agent_sees(tmp_path: Path) -> None:
    """It goes on without the answer."""
    model = PlayedModel(say("", call("kaged_ask", QUESTION)), say("Fine."))
    async with loop_lab(tmp_path, model) as lab:
        end = await lab.talk("Go")
        assert end.interaction is not None
        await lab.work.interactions.withdraw(
            PROJECT, str(end.interaction["request_id"]), "operator"
        )
        async with asyncio.timeout(WAIT_S):
            end = await lab.driver.follow(end)
        assert end.text == "Fine."
        assert model.texts()[-1].startswith("error kaged_ask: ")


async def test_two_answers_to_one_question_start_one_run(tmp_path: Path) -> None:
    """The second is told that it came too late."""
    model = PlayedModel(say("", call("kaged_ask", QUESTION)), say("ok"))
    async with loop_lab(tmp_path, model) as lab:
        end = await lab.talk("Go")
        assert end.interaction is not None
        request_id = str(end.interaction["request_id"])
        both = await asyncio.gather(
            *(
                lab.work.interactions.answer(
                    PROJECT, request_id, OperatorAnswer({"q": one}), "operator"
                )
                for one in ("a", "b")
            ),
            return_exceptions=True,
        )
        assert sorted(getattr(one, "code", type(one).__name__) for one in both) == [
            "InteractionRecord",
            "interaction_closed",
        ]
        async with asyncio.timeout(WAIT_S):
            await lab.driver.follow(end)
        _, runs = await lab.store.agent_runs.page(end.session_id, 5, 0)
        assert runs == 2
