"""Events and entries in the words of the Agent Client Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaged.cli.acp.asking import answer_in_words, question_text
from kaged.cli.acp.feed import GAP, MAX_WAITING, EventFeed, FeedEvent
from kaged.cli.acp.replay import replayed
from kaged.cli.acp.updates import MAX_TEXT_CHARS, RunUpdates, kind_of, title_of

ROOT = Path("/srv/p")


def shown(updates: RunUpdates, name: str, **data: Any) -> list[dict[str, Any]]:
    """Return what an editor is told about an event."""
    found = updates.of(FeedEvent(name, data))
    return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in found]


def finished(**data: Any) -> list[dict[str, Any]]:
    """Return what an editor is told about the end of a call."""
    call = {"request_id": "r1", "tool_name": "shell.bash", "status": "completed"}
    return shown(RunUpdates(ROOT, "primary"), "tool.finished", **{**call, **data})


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("file.read", "read"),
        ("file.write", "edit"),
        ("edit.ast", "edit"),
        ("search.grep", "search"),
        ("shell.bash", "execute"),
        ("web.fetch", "fetch"),
        ("kaged.todo", "think"),
        ("plugin.anything", "other"),
    ],
)
def test_each_tool_is_of_a_kind_that_editors_know(tool: str, kind: str) -> None:
    assert kind_of(tool) == kind


def test_words_of_a_subagent_are_not_those_of_the_agent_and_its_calls_carry_its_name() -> None:
    updates = RunUpdates(ROOT, "primary")
    assert shown(updates, "text.delta", agent="primary.subagents.reader", text="x") == []
    (own,) = shown(updates, "text.delta", agent="primary", text="x")
    assert own["content"]["text"] == "x"
    call = {"request_id": "r1", "tool_name": "file.read", "params": {"path": "a"}}
    (inner,) = shown(updates, "tool.started", caller="primary.subagents.reader", **call)
    assert inner["title"] == "reader: file.read a"


def test_a_path_of_a_scheme_is_no_place_in_the_project() -> None:
    call = {"request_id": "r1", "tool_name": "file.read", "caller": "primary"}
    (started,) = shown(
        RunUpdates(ROOT, "primary"), "tool.started", **call, params={"path": "config:/tmp/x"}
    )
    assert started["locations"] == []


def test_a_denied_call_is_told_with_what_would_change_that() -> None:
    error = {"code": "capability_denied", "message": "Not in its cage.", "data": {"fix": "Ask."}}
    (ended,) = finished(status="denied", error=error)
    assert ended["status"] == "failed"
    assert ended["content"][0]["content"]["text"] == "Not in its cage.\nFix: Ask."


def test_a_long_result_is_cut_for_people() -> None:
    (ended,) = finished(result={"output": "x" * (MAX_TEXT_CHARS + 1)})
    assert len(ended["content"][0]["content"]["text"]) == MAX_TEXT_CHARS + 2


def test_a_todo_list_becomes_a_plan() -> None:
    todos = [
        {"content": "one", "status": "completed"},
        {"content": "two", "status": "in_progress"},
        {"content": "three", "status": "pending"},
    ]
    _, plan = finished(tool_name="kaged.todo", result={"todos": todos, "markdown": "- one"})
    assert [(one["content"], one["status"]) for one in plan["entries"]] == [
        ("one", "completed"),
        ("two", "in_progress"),
        ("three", "pending"),
    ]


def test_a_title_takes_one_line_whatever_the_model_wrote() -> None:
    told = title_of("shell.bash", {"command": "echo 1\necho \x1b[31m2" + "x" * 500})
    assert "\n" not in told
    assert "\x1b" not in told
    assert len(told) <= 120


def test_results_of_calls_that_were_not_shown_are_passed_over() -> None:
    def entry(role: str, *blocks: dict[str, Any], agent: str = "primary") -> dict[str, Any]:
        return {"kind": "message", "role": role, "agent": agent, "content": {"content": [*blocks]}}

    call = {"type": "tool_call", "id": "c1", "request_id": "r1", "name": "file.read", "input": {}}
    result = {"type": "tool_result_block", "request_id": "r1", "output": "x", "is_error": True}
    entries = [
        entry("tool_result", {**result, "request_id": "r0"}),
        entry("user", {"type": "text", "text": "hello"}),
        entry("assistant", {"type": "text", "text": "inner"}, agent="primary.subagents.a"),
        entry("assistant", call),
        entry("tool_result", result),
        entry("tool_result", result),
    ]
    told = [
        one.model_dump(mode="json", by_alias=True) for one in replayed(entries, ROOT, "primary")
    ]
    assert [one["sessionUpdate"] for one in told] == [
        "user_message_chunk",
        "tool_call",
        "tool_call_update",
    ]
    assert told[-1]["status"] == "failed"


def test_several_questions_cannot_be_answered_by_one_prompt() -> None:
    one = {"id": "a", "title": "A?", "options": [], "multiple": False}
    asked: dict[str, Any] = {"kind": "ask", "request_id": "req_1", "payload": {"questions": [one]}}
    assert answer_in_words(asked, "yes") == {"answers": {"a": "yes"}, "files": {}}
    asked["payload"]["questions"] = [{**one, "multiple": True}]
    assert answer_in_words(asked, "yes") == {"answers": {"a": ["yes"]}, "files": {}}
    asked["payload"]["questions"] = [one, {**one, "id": "b"}]
    assert answer_in_words(asked, "yes") is None
    assert "kaged answer req_1" in question_text(asked)


def test_a_listener_that_is_far_behind_looks_for_itself() -> None:
    feed = EventFeed(Path("/nowhere"))
    with feed.listening("s1") as events, feed.listening("s2") as others:
        for number in range(MAX_WAITING + 1):
            feed.hand_on(FeedEvent("text.delta", {"session_id": "s1", "number": number}))
        feed.hand_on(FeedEvent("attention.required", {"chat_id": "s2", "id": "req_1"}))
        assert (events.get_nowait().name, events.get_nowait().data["number"]) == (GAP, MAX_WAITING)
        assert events.empty()
        assert others.get_nowait().data["id"] == "req_1"
    feed.hand_on(FeedEvent("text.delta", {"session_id": "s1"}))
    assert events.empty()
