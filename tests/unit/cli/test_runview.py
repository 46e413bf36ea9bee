"""What a run looks like: in a terminal, in a pipe, as JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.cli.commands.asking import answer_of, ask_person
from kaged.cli.commands.driving import EndedRun, summary_of
from kaged.cli.exits import Exit
from kaged.cli.output import Output
from kaged.cli.runview import RunView


class Screen(io.StringIO):
    """A place to write to that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def event(name: str, **data: Any) -> dict[str, Any]:
    return {"name": name, "data": {"agent": "primary", "run_id": "run_1", **data}}


EVENTS = [
    event("turn.started", index=1),
    event("text.delta", text="I read "),
    event("text.delta", text="it."),
    event("tool.started", request_id="r1", caller="primary", tool_name="file.read",
          params={"path": "log.txt"}),
    event("tool.finished", request_id="r1", caller="primary", tool_name="file.read",
          status="completed", duration_ms=3.2, error=None),
    event("text.delta", text="I look.", agent="primary.subagents.lookout"),
    event("tool.finished", request_id="r2", caller="primary.subagents.lookout",
          tool_name="file.read", status="denied", duration_ms=0,
          error={"code": "capability_denied", "message": "not allowed"}),
    event("turn.ended", agent="primary.subagents.lookout"),
    event("model.retried", reason="model_rate_limited: slow", attempt=1, wait_s=2.0),
    event("turn.started", index=2),
    event("text.delta", text="Done."),
    event("turn.ended", index=2),
]  # fmt: skip


def shown(view: RunView) -> RunView:
    for one in EVENTS:
        view.show(one)
        view.tick()
    view.close()
    return view


def test_in_a_pipe_standard_output_holds_the_agents_words_alone(clock: ManualClock) -> None:
    out, err = io.StringIO(), io.StringIO()
    view = shown(RunView(as_json=False, stdout=out, stderr=err, clock=clock))
    assert out.getvalue() == "I read it.\nDone.\n"
    assert "\x1b" not in err.getvalue()
    assert "ok        file.read log.txt  3 ms\n" in err.getvalue()
    assert "lookout denied    file.read  0 ms: not allowed" in err.getvalue()
    assert "lookout: I look." in err.getvalue()
    assert "retrying the model in 2.0 s" in err.getvalue()
    assert view.text == "Done."


@pytest.mark.parametrize("as_json", [False, True])
def test_what_broke_off_is_no_part_of_the_result(clock: ManualClock, as_json: bool) -> None:
    out, err = io.StringIO(), io.StringIO()
    view = RunView(as_json=as_json, stdout=out, stderr=err, clock=clock)
    for one in (
        event("turn.started"),
        event("text.delta", text="Half an ans"),
        event("model.retried", reason="model_unavailable: cut", wait_s=0.5),
        event("text.delta", text="A whole "),
        event("text.delta", text="answer.\n"),
        event("turn.ended"),
    ):
        view.show(one)
    view.close()
    assert as_json or out.getvalue() == "A whole answer.\n"
    assert view.text == "A whole answer.\n"


def test_thinking_goes_beside_the_words_never_into_them(clock: ManualClock) -> None:
    out, err = io.StringIO(), io.StringIO()
    view = RunView(as_json=False, thinking=True, stdout=out, stderr=err, clock=clock)
    view.show(event("thinking.delta", text="Hm, "))
    view.show(event("thinking.delta", text="well."))
    view.show(event("text.delta", text="Yes."))
    view.close()
    assert out.getvalue() == "Yes.\n"
    assert err.getvalue() == "Hm, well.\n"


def test_a_terminal_gets_colours_and_a_line_at_the_bottom(clock: ManualClock) -> None:
    out, err = Screen(), Screen()
    shown(RunView(as_json=False, stdout=out, stderr=err, clock=clock))
    assert "\x1b[32m✓ ok" in err.getvalue()
    assert "\x1b[31m✗ denied" in err.getvalue()
    assert "… thinking" in err.getvalue()
    assert "file.read log.txt 0 s" in err.getvalue()
    # What is at the bottom is taken away before anything else is written.
    assert not err.getvalue().rstrip("\n").endswith("s\x1b[0m\x1b[0m")


def test_as_json_every_event_is_a_line(clock: ManualClock) -> None:
    out, err = io.StringIO(), io.StringIO()
    view = shown(RunView(as_json=True, stdout=out, stderr=err, clock=clock))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["event"] for one in lines] == [one["name"] for one in EVENTS]
    assert err.getvalue() == ""
    assert view.text == "Done."


def test_what_agents_and_tools_say_cannot_speak_to_the_terminal(clock: ManualClock) -> None:
    out, err = Screen(), Screen()
    view = RunView(as_json=False, thinking=True, stdout=out, stderr=err, clock=clock)
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    for one in (
        event("text.delta", text=evil),
        event("thinking.delta", text=evil),
        event("text.delta", text=evil, agent="primary.subagents.x"),
        event("turn.ended", agent="primary.subagents.x"),
        event("tool.started", request_id="r", caller=evil, tool_name=evil, params={"path": evil}),
        event("tool.finished", request_id="r", caller=evil, tool_name=evil, status="failed",
              error={"message": evil}),
        event("model.retried", reason=evil),
    ):  # fmt: skip
        view.show(one)
        view.tick()
    for text in (out.getvalue(), err.getvalue()):
        assert "\x1b]" not in text
        assert "\x07" not in text
        assert "\x1b[2J" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [("completed", 0), ("failed", 1), ("paused", 9), ("cancelled", 130), ("interrupted", 5)],
)
def test_how_a_run_ends_is_the_exit_code(status: str, exit_code: int) -> None:
    assert EndedRun("r", status, 1, {}, None).exit is Exit(exit_code)


def test_the_summary_names_the_cost_when_it_is_known() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.0123}
    assert summary_of(EndedRun("r", "completed", 1, usage, None), 1.25) == (
        "1 step, 10 tokens in, 2 out, $0.0123, 1.2 s"
    )


FORM = {
    "kind": "form",
    "payload": {
        "fields": [
            {"name": "count", "label": "How many", "type": "number", "required": True,
             "description": "", "options": []},
            {"name": "colour", "label": "Colour", "type": "select", "required": False,
             "description": "Of the hull.", "options": ["red", "blue"]},
        ]
    },
}  # fmt: skip
QUESTIONS = {
    "kind": "ask",
    "payload": {
        "questions": [
            {"id": "a", "title": "One?", "description": "", "options": ["x", "y"],
             "multiple": False},
            {"id": "b", "title": "Many?", "description": "", "options": ["x", "y", "z"],
             "multiple": True},
        ]
    },
}  # fmt: skip


def answers(*lines: str) -> Any:
    left = list(lines)
    return lambda _prompt: left.pop(0)


def test_questions_are_answered_by_number_or_by_word() -> None:
    out = Output(as_json=False, stdout=io.StringIO())
    body = ask_person(QUESTIONS, out, answers("2", "1; z"))
    assert body["answers"] == {"a": "y", "b": ["x", "z"]}


def test_forms_are_filled_in_with_the_right_types() -> None:
    out = Output(as_json=False, stdout=io.StringIO())
    body = ask_person(FORM, out, answers("7", "1"))
    assert body["answers"] == {"count": 7, "colour": "red"}
    assert answer_of(FORM, ["count=7", "colour=red"], None)["answers"] == body["answers"]


@pytest.mark.parametrize(
    ("said", "decision"),
    [("y", "approve"), ("no", "reject"), ("wait a moment", "reply")],
)
def test_checkpoints_take_a_decision_or_words(said: str, decision: str) -> None:
    asked = {"kind": "checkpoint", "payload": {"message": "May I?", "detail": None}}
    body = ask_person(asked, Output(as_json=False, stdout=io.StringIO()), answers("", said))
    assert body["decision"] == decision
