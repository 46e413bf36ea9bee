"""What may leave a full window, and what stays whatever happens. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import JsonObject
from kaged.config.agents import ResolvedCompaction
from kaged.config.project import CompactionStrategy
from kaged.sessions.compaction import (
    KEEP_LAST,
    always_keep,
    plan_compaction,
    threshold_tokens,
    with_note,
)
from kaged.sessions.entry import EntryRole
from kaged.sessions.messages import WindowMessage, message_of, text_block

TEXT = text_block("x" * 40)


def say(at: int, role: EntryRole = EntryRole.USER, **more: Any) -> WindowMessage:
    return message_of(f"{at:02}", role, [TEXT], **more)


def turn(at: int, *requests: str) -> WindowMessage:
    calls: list[JsonObject] = [
        {"type": "tool_call", "id": one, "name": "t", "input": {}, "request_id": one}
        for one in requests
    ]
    return message_of(f"{at:02}", EntryRole.ASSISTANT, [TEXT, *calls])


def result(at: int, request: str) -> WindowMessage:
    block: JsonObject = {
        "type": "tool_result_block",
        "call_id": request,
        "request_id": request,
        "output": "y",
    }
    return message_of(f"{at:02}", EntryRole.TOOL_RESULT, [block])


def test_the_oldest_go_first_and_only_as_many_as_needed() -> None:
    """The first message of the user and the last few stay."""
    messages = [say(at) for at in range(20)]
    size = messages[0].tokens
    plan = plan_compaction(messages, size * 15)
    assert [one.id for one in plan.being] == ["01", "02", "03", "04", "05"]
    assert plan.tokens_after <= size * 15
    everything = plan_compaction(messages, 0)
    assert [one.id for one in everything.remaining] == [
        "00",
        *(f"{at:02}" for at in range(20 - KEEP_LAST, 20)),
    ]
    assert plan_compaction(messages, size * 20).being == ()


def test_system_pinned_and_open_ones_stay() -> None:
    """Notes of an earlier compaction do not; they may be summed up again."""
    note = message_of("cmp:note", EntryRole.SYSTEM, [TEXT])
    messages = [
        say(0),
        say(1, EntryRole.SYSTEM),
        note,
        say(2, pinned=True),
        say(3),
        turn(4, "open", "closed"),
        result(5, "closed"),
        *(say(at) for at in range(6, 20)),
    ]
    plan = plan_compaction(messages, 0)
    gone = {one.id for one in plan.being}
    assert not gone & {"00", "01", "02", "04", "05"}
    assert {"cmp:note", "03"} <= gone


def test_a_turn_and_its_results_go_together() -> None:
    """Also when only a result is among the last few."""
    messages = [say(0), turn(1, "a", "b"), result(2, "a"), *(say(at) for at in range(3, 8))]
    messages.append(result(9, "b"))
    kept = always_keep(messages, keep_last=1)
    assert {"01", "02", "09"} <= kept
    plan = plan_compaction(messages, 0, keep_last=0)
    ids = {one.id for one in plan.being}
    assert {"01", "02", "09"} <= ids or not {"01", "02", "09"} & ids


@given(
    st.lists(st.sampled_from(["user", "assistant", "pinned", "system", "calls"]), max_size=40),
    st.integers(0, 2000),
    st.integers(0, 10),
)
def test_no_plan_touches_what_must_stay(kinds: list[str], target: int, keep_last: int) -> None:
    """Whatever the window; nothing is lost and nothing is doubled."""
    messages: list[WindowMessage] = []
    for at, kind in enumerate(kinds):
        match kind:
            case "calls":
                messages += [turn(at, f"r{at}"), result(at + 50, f"r{at}")]
            case "pinned":
                messages.append(say(at, pinned=True))
            case _:
                messages.append(say(at, EntryRole(kind)))
    plan = plan_compaction(messages, target, keep_last)
    assert sorted(one.id for one in (*plan.being, *plan.remaining)) == sorted(
        one.id for one in messages
    )
    left = [one.id for one in plan.remaining]
    must = {one.id for one in plan.keep}
    assert must <= set(left)
    assert [one.id for one in messages if one.id in left] == left
    if plan.tokens_after > target:
        assert set(left) == must


@pytest.mark.parametrize(
    ("threshold", "expected"), [(None, 800), (0.5, 500), (1, 1000), (300.0, 300), (9999.0, 1000)]
)
def test_thresholds_are_shares_or_tokens(threshold: float | None, expected: int) -> None:
    """And never more than the model takes."""
    resolved = ResolvedCompaction(CompactionStrategy.DROP, threshold, None)
    assert threshold_tokens(resolved, 1000) == expected


def test_a_note_stands_where_the_messages_stood_that_went() -> None:
    """Behind the first words of the user, before the last ones."""
    messages = [say(at) for at in range(6)]
    kept = [messages[0], messages[4], messages[5]]
    found = with_note(messages, kept, "n:0", "gone")
    assert [one.id for one in found] == ["00", "n:0", "04", "05"]
    assert with_note(messages, kept, "n:0", "") == kept
