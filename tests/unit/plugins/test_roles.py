from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import JsonObject
from kaged.plugins.roles import CompactorFault, CompactorResult, parse_compactor_result
from requirements import requirement

SYSTEM: JsonObject = {"id": "m0", "role": "system", "content": "be kind"}
GOOD: dict[str, Any] = {
    "role": "compactor",
    "messages": [SYSTEM, {"role": "user", "content": "short"}],
    "superseded": ["m1"],
    "summary": "said hello",
}


def parse(answer: Any) -> CompactorResult | CompactorFault:
    return parse_compactor_result(answer, compacted_ids=["m1", "m2"], always_keep=[SYSTEM])


@requirement("PH-ROLE-14")
def test_a_whole_answer_is_taken_with_or_without_a_summary() -> None:
    taken = parse(GOOD)
    assert isinstance(taken, CompactorResult)
    assert taken.superseded == ("m1",)
    assert taken.summary == "said hello"
    assert [message["content"] for message in taken.messages] == ["be kind", "short"]
    bare = {key: value for key, value in GOOD.items() if key != "summary"}
    assert isinstance(parse(bare), CompactorResult)


@requirement(
    "PH-ROLE-09", "PH-ROLE-10", "PH-ROLE-12", "PH-ROLE-13", "PH-ROLE-14", "PH-ROLE-17", "PH-ROLE-20"
)
@pytest.mark.parametrize(
    "change",
    [
        {"role": "observer"},
        {"role": None},
        {"messages": None},
        {"messages": "text"},
        {"messages": [SYSTEM, 5]},
        {"messages": [SYSTEM, {"role": "user"}]},
        {"messages": [SYSTEM, {"content": "x"}]},
        {"messages": [SYSTEM, {"role": 1, "content": "x"}]},
        {"superseded": None},
        {"superseded": "m1"},
        {"superseded": [1]},
        {"superseded": ["m9"]},
        {"superseded": ["m0"]},
        {"superseded": ["m1", "m9"]},
        {"summary": 5},
    ],
    ids=str,
)
def test_every_defect_is_a_fault(change: dict[str, Any]) -> None:
    assert isinstance(parse({**GOOD, **change}), CompactorFault)


@requirement("PH-ROLE-09", "PH-ROLE-10", "PH-ROLE-12", "PH-ROLE-17")
@pytest.mark.parametrize("missing", sorted(GOOD.keys() - {"summary"}))
def test_every_required_member_is_required(missing: str) -> None:
    answer = {key: value for key, value in GOOD.items() if key != missing}
    assert isinstance(parse(answer), CompactorFault)


@requirement("PH-ROLE-11")
def test_a_dropped_always_keep_message_is_named() -> None:
    fault = parse({**GOOD, "messages": [{"role": "user", "content": "short"}]})
    assert isinstance(fault, CompactorFault)
    assert fault.missing == ("m0",)
    later: JsonObject = {"id": "m7", "role": "user", "content": "and never that"}
    second = parse_compactor_result(GOOD, compacted_ids=["m1"], always_keep=[SYSTEM, later])
    assert isinstance(second, CompactorFault)
    assert second.missing == ("m7",)


def test_an_always_keep_message_may_be_kept_by_id_or_by_being_equal() -> None:
    renamed = {**SYSTEM, "content": "changed"}
    assert isinstance(parse({**GOOD, "messages": [renamed]}), CompactorResult)
    nameless: JsonObject = {"role": "user", "content": "first"}
    for kept, kind in (([nameless], CompactorResult), ([SYSTEM], CompactorFault)):
        answer: Any = {**GOOD, "messages": kept}
        got = parse_compactor_result(answer, compacted_ids=["m1"], always_keep=[nameless])
        assert isinstance(got, kind)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(json_values)
def test_no_answer_breaks_the_parser(answer: Any) -> None:
    assert isinstance(parse(answer), CompactorResult | CompactorFault)


@given(json_values, json_values, json_values)
def test_no_member_breaks_the_parser(messages: Any, superseded: Any, summary: Any) -> None:
    answer = {
        "role": "compactor",
        "messages": messages,
        "superseded": superseded,
        "summary": summary,
    }
    assert isinstance(parse(answer), CompactorResult | CompactorFault)
