from __future__ import annotations

import itertools
from typing import Any

import pytest

from kaged.wire.context import ContextInvalid, WireContext, split_context, with_context

_AGENT = WireContext("req_1", "operator", "music", "primary.subagents.researcher", "ses_1")


def test_a_context_has_exactly_the_five_members_of_the_contract() -> None:
    assert _AGENT.to_wire() == {
        "operator_id": "operator",
        "project_id": "music",
        "agent_path": "primary.subagents.researcher",
        "session_id": "ses_1",
        "request_id": "req_1",
    }
    assert WireContext("req_2").to_wire() == {
        "operator_id": None,
        "project_id": None,
        "agent_path": None,
        "session_id": None,
        "request_id": "req_2",
    }


def test_a_context_comes_from_an_agent_or_from_the_daemon() -> None:
    assert _AGENT.from_agent
    assert not WireContext("req_2", "operator").from_agent


@pytest.mark.parametrize(
    "given", [c for c in itertools.product([None, "x"], repeat=3) if len(set(c)) > 1]
)
def test_a_partly_filled_context_cannot_be_built(given: tuple[str | None, ...]) -> None:
    project_id, agent_path, session_id = given
    with pytest.raises(ContextInvalid) as raised:
        WireContext("req_1", "operator", project_id, agent_path, session_id)
    assert raised.value.code == "context_invalid"


def test_a_context_without_a_request_id_cannot_be_built() -> None:
    with pytest.raises(ContextInvalid):
        WireContext("")


def test_a_context_sent_by_the_caller_is_replaced() -> None:
    forged: Any = {"filter": "web", "_context": {"operator_id": "root"}}
    params = with_context(forged, _AGENT)
    assert params == {"filter": "web", "_context": _AGENT.to_wire()}
    assert forged["_context"] == {"operator_id": "root"}


def test_a_guest_gets_its_params_and_the_context_apart() -> None:
    params = with_context({"filter": "web"}, _AGENT)
    assert split_context(params) == ({"filter": "web"}, _AGENT)
    assert "_context" in params
    assert split_context({"a": 1}) == ({"a": 1}, None)


def test_a_missing_member_reads_as_none() -> None:
    assert split_context({"_context": {"request_id": "r"}}) == ({}, WireContext("r"))


@pytest.mark.parametrize(
    "context",
    [None, "text", [], {}, {"request_id": 5}, {"request_id": "r", "operator_id": 5}],
)
def test_a_malformed_context_is_refused(context: Any) -> None:
    with pytest.raises(ContextInvalid):
        split_context({"_context": context})
