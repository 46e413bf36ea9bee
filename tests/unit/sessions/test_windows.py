"""What a model sees of a session: windows, names, tokens. Pure."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.models.turn import AssistantMessage, ModelMessage, ToolResultMessage
from kaged.sessions.entry import Entry, EntryKind, EntryRole
from kaged.sessions.messages import (
    INTERRUPTED,
    TokenGauge,
    estimate_text,
    message_of,
    message_of_json,
    open_calls,
    text_block,
)
from kaged.sessions.model_view import UNSETTLED, ModelView
from kaged.sessions.prompt import just_shown, system_prompt
from kaged.sessions.snapshot import MAX_NAME_CHARS, ToolNames
from kaged.sessions.subagents import structured
from kaged.sessions.window import Window, WindowMessage, compaction_messages, load_window
from thorough import examples

NAMES = ToolNames(["file.read"])


def to_model(messages: Sequence[WindowMessage], names: ToolNames) -> list[ModelMessage]:
    """Write a window once."""
    return ModelView(names).write(messages)


def entry(id_: str, role: str, *blocks: dict[str, Any]) -> Entry:
    return Entry(
        id_, "s", EntryKind.MESSAGE, EntryRole(role), "primary", None, 0,
        content={"content": list(blocks)},
    )  # fmt: skip


def asked(request_id: str, call_id: str = "c") -> dict[str, Any]:
    return {
        "type": "tool_call",
        "id": call_id,
        "name": "file.read",
        "input": {},
        "request_id": request_id,
    }


def result(request_id: str, output: Any = "ok", call_id: str = "c") -> dict[str, Any]:
    return {
        "type": "tool_result_block",
        "call_id": call_id,
        "request_id": request_id,
        "name": "file.read",
        "output": output,
        "is_error": False,
    }


def test_results_stand_behind_their_turn_in_the_order_of_asking() -> None:
    """Whatever order they came in, and although the model gave two turns the same call id."""
    window = load_window(
        [
            entry("1", "user", text_block("go")),
            entry("2", "assistant", asked("r1", "a"), asked("r2", "b")),
            entry("3", "tool_result", result("r2", "two", "b")),
            entry("4", "tool_result", result("r1", "one", "a")),
            entry("5", "assistant", asked("r3", "a")),
            entry("6", "tool_result", result("r3", "three", "a")),
        ]
    )
    results = [
        (one.call_id, one.content)
        for one in to_model(window.messages, NAMES)
        if isinstance(one, ToolResultMessage)
    ]
    assert results == [("a", "one"), ("b", "two"), ("a", "three")]
    assert window.open_calls() == ()


def test_calls_without_results_and_results_without_calls_are_mended() -> None:
    """Vendors refuse both."""
    window = load_window(
        [
            entry("1", "user", text_block("go")),
            entry("2", "tool_result", result("nobody")),
            entry("3", "assistant", text_block(""), asked("r1")),
        ]
    )
    written = to_model(window.messages, NAMES)
    assert [type(one).__name__ for one in written] == [
        "UserMessage",
        "AssistantMessage",
        "ToolResultMessage",
    ]
    last = written[-1]
    assert isinstance(last, ToolResultMessage)
    assert (last.content, last.is_error) == (INTERRUPTED, True)
    assert [one.request_id for one in window.open_calls()] == ["r1"]


def test_a_result_that_comes_later_takes_the_place_of_the_note_about_it() -> None:
    """What was written before is kept, as long as it says the same."""
    view = ModelView(NAMES)
    turn = [
        entry("1", "user", text_block("go")),
        entry("2", "assistant", asked("r1", "a"), asked("r2", "a")),
    ]
    window = load_window([*turn, entry("3", "tool_result", result("r1", "one", "a"))])
    results = [one for one in view.write(window.messages) if isinstance(one, ToolResultMessage)]
    assert [one.content for one in results] == ["one", INTERRUPTED]
    window.add([entry("4", "tool_result", result("r2", "two", "a"))])
    for _ in range(2):
        found = [one for one in view.write(window.messages) if isinstance(one, ToolResultMessage)]
        assert [(one.content, one.is_error) for one in found] == [("one", False), ("two", False)]


def test_a_beginning_whose_calls_have_their_results_is_written_once() -> None:
    view = ModelView(NAMES)
    entries: list[Entry] = []
    for number in range(UNSETTLED + 3):
        entries += [
            entry(f"a{number}", "assistant", asked(f"r{number}")),
            entry(f"b{number}", "tool_result", result(f"r{number}")),
        ]
    window = load_window(entries)
    first, second = view.write(window.messages), view.write(window.messages)
    assert first == second == to_model(window.messages, NAMES)
    same = [one is other for one, other in zip(first, second, strict=True)]
    assert same == [True] * (len(first) - UNSETTLED) + [False] * UNSETTLED


@settings(max_examples=examples(50))
@given(st.data())
def test_a_view_that_grows_writes_what_a_new_one_would(data: st.DataObject) -> None:
    """Calls with the same ids, results that come late, twice or never, notes that come and go."""
    view = ModelView(NAMES)
    stored: list[Any] = []
    names = st.sampled_from("pqr")
    for number in range(data.draw(st.integers(1, 25))):
        kind = data.draw(st.sampled_from(["user", "asked", "asked", "result", "result", "cut"]))
        if kind == "user":
            stored.append(entry(f"{number}", "user", text_block("go")))
        elif kind == "asked":
            calls = [asked(data.draw(names), data.draw(names)) for _ in range(2)]
            stored.append(entry(f"{number}", "assistant", *calls))
        elif kind == "result":
            stored.append(entry(f"{number}", "tool_result", result(data.draw(names), f"{number}")))
        else:
            del stored[: data.draw(st.integers(0, 2))]
        messages = load_window(stored).messages
        if data.draw(st.booleans()):
            messages.append(message_of("system:reminder", EntryRole.SYSTEM, [text_block("todo")]))
        assert view.write(messages) == to_model(messages, NAMES)


def test_an_empty_turn_is_left_out() -> None:
    """Some vendors refuse one."""
    window = load_window([entry("1", "user", text_block("a")), entry("2", "assistant")])
    assert not any(isinstance(one, AssistantMessage) for one in to_model(window.messages, NAMES))


def test_a_window_begins_at_its_newest_compaction() -> None:
    """Kept messages by reference, others as they were written; what comes later follows."""
    messages = [message_of(str(at), EntryRole.USER, [text_block(f"m{at}")]) for at in range(4)]
    note = message_of("cmp_1:note", EntryRole.SYSTEM, [text_block("summed up")])
    changed = message_of("3", EntryRole.USER, [text_block("m3, shorter")])
    written = compaction_messages([messages[0], note, messages[2], changed], messages, ["1"])
    assert written[0] == {"entry": "0"}
    assert written[2] == {"entry": "2"}
    compaction = Entry(
        "9", "s", EntryKind.COMPACTION, None, "primary", None, 0, content={"messages": written}
    )
    entries = [entry(str(at), "user", text_block(f"m{at}")) for at in (0, 2, 3)]
    window = load_window([*entries, compaction, entry("99", "user", text_block("new"))])
    assert [one.text for one in window.messages] == ["m0", "summed up", "m2", "m3, shorter", "new"]
    assert window.tokens == sum(one.tokens for one in window.messages)


def test_a_superseded_message_that_stays_is_written_whole() -> None:
    """Its entry has left the window and could not be referred to."""
    one = message_of("1", EntryRole.USER, [text_block("m")])
    assert compaction_messages([one], [one], ["1"]) == [one.as_json()]


def test_messages_of_plugins_are_read_in_every_form() -> None:
    """Text or blocks, and `tool` for a result."""
    plain = message_of_json({"role": "user", "content": "hi"}, "x:0")
    assert plain is not None
    assert (plain.id, plain.text) == ("x:0", "hi")
    blocks = message_of_json({"role": "tool", "content": [result("r"), "and"], "id": "7"}, "")
    assert blocks is not None
    assert (blocks.role, blocks.answers, blocks.text) == (EntryRole.TOOL_RESULT, ("r",), "and")
    assert message_of_json({"role": "narrator", "content": ""}, "x") is None
    assert message_of_json({"role": 7, "content": ""}, "x") is None


@given(
    st.lists(
        st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=90),
        max_size=30,
        unique=True,
    )
)
def test_every_tool_has_a_name_that_vendors_take_and_that_leads_back(names: list[str]) -> None:
    """Whatever they are called; two tools never share one."""
    known = ToolNames(names)
    safe = [known.safe(one) for one in names]
    assert len(set(safe)) == len(names)
    assert [known.own(one) for one in safe] == names
    for one in safe:
        assert 0 < len(one) <= MAX_NAME_CHARS
        assert set(one) <= set(string.ascii_letters + string.digits + "_-")


def test_names_that_would_collide_are_marked_and_unknown_ones_pass() -> None:
    """`a.b` and `a_b`: the one that needs no change keeps its name."""
    names = ToolNames(["a.b", "a_b"])
    assert names.safe("a_b") == "a_b"
    assert names.safe("a.b").startswith("a_b_")
    assert names.own("made up") == "made up"
    assert names.own("a.b") == "a.b"
    assert names.safe("made up") == "made_up"


def test_a_tool_that_the_agent_does_not_have_is_understood_by_its_name_for_models() -> None:
    """And never stands in the way of a tool that it has."""
    names = ToolNames(["a.b"], ["a.b", "a_b", "kaged.todo"])
    assert names.own("kaged_todo") == "kaged.todo"
    assert names.own("a_b") == "a.b"


@given(st.text())
def test_estimates_are_never_negative_and_never_zero_for_words(text: str) -> None:
    """And grow with the text."""
    assert estimate_text(text) >= (1 if text else 0)
    assert estimate_text(text + "abcd") > estimate_text(text)


def test_estimates_learn_from_what_the_vendor_counts() -> None:
    """Within bounds, and never from nothing."""
    gauge = TokenGauge()
    gauge.learn(100, 150)
    assert gauge.tokens(1000) == 1500
    gauge.learn(100, 100_000)
    assert gauge.tokens(1000) == 3000
    gauge.learn(0, 5)
    gauge.learn(5, 0)
    assert gauge.tokens(1000) == 3000


def test_injections_come_before_the_prompt() -> None:
    """Each on its own; none changes nothing."""
    assert system_prompt("own", ()) == "own"
    assert system_prompt("own", ("<a>1</a>", "<b>2</b>")) == "<a>1</a>\n\n<b>2</b>\n\nown"


def test_the_turn_right_before_decides_whether_the_list_was_just_shown() -> None:
    """Among its results one of the todo tool."""
    todo = {**result("r"), "name": "kaged.todo"}
    turn = entry("1", "assistant", asked("r"), asked("q"))
    shown = load_window(
        [turn, entry("2", "tool_result", todo), entry("3", "tool_result", result("q"))]
    )
    assert just_shown(shown.messages)
    later = load_window([turn, entry("2", "tool_result", todo), entry("3", "assistant")])
    assert not just_shown(later.messages)
    assert not just_shown([])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Done.", "Done."),
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ("{not json}", "{not json}"),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_an_answer_that_is_an_object_is_one(text: str, expected: Any) -> None:
    """Anything else is words."""
    assert structured(text) == expected


def test_a_window_keeps_count_as_it_grows() -> None:
    window = Window()
    window.add([entry("1", "user", text_block("hello there"))])
    window.add([entry("2", "assistant", text_block("hi"))])
    assert window.tokens == sum(one.tokens for one in window.messages) > 0
    assert open_calls(window.messages) == ()
