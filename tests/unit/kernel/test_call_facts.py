"""Traces: which `traceparent` counts, and ids that are made where none came."""

from __future__ import annotations

import pytest

from kaged.kernel.call_facts import parse_traceparent, span_id_of, trace_id_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize("text", [f"00-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-is-next"])
def test_a_trace_of_this_version_or_a_later_one_counts(text: str) -> None:
    assert parse_traceparent(text) == TRACE


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 300,
        f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)
def test_what_the_standard_does_not_allow_counts_for_nothing(text: str | None) -> None:
    assert parse_traceparent(text) is None


def test_made_ids_have_the_form_and_stay_the_same() -> None:
    assert parse_traceparent(f"00-{trace_id_of('run_1')}-{span_id_of('req_1')}-00") == trace_id_of(
        "run_1"
    )
    assert trace_id_of("run_1") != trace_id_of("run_2")
    assert span_id_of("req_1") != span_id_of("req_2")
