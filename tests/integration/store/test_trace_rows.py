"""What policies did is kept within bounds, and shown to whoever made the call."""

from __future__ import annotations

import pytest

from fakes.store_home import StoreHome
from kaged.base import JsonObject
from kaged.kernel.identity import Actor, VouchedBy
from kaged.store import pipeline_trace_rows
from kaged.store.pipeline_trace_rows import TraceRow

OPERATOR = Actor.operator("op", VouchedBy.UNIX)


def row(request: str, number: int = 0, person: str | None = None) -> TraceRow:
    step: JsonObject = {"plugin": f"p{number}"}
    return TraceRow(request, person, None, "prj_1", None, number, step)


async def test_the_oldest_steps_make_room_for_new_ones(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_trace_rows, "MAX_ROWS", 3)
    traces = (await home.store()).pipeline_traces
    await traces.write([row("req_1", 1), row("req_1", 2)])
    await traces.write([row("req_2", 3), row("req_2", 4)])
    assert [one.at_ms for one in (await traces.of_request("req_1", OPERATOR))[0]] == [2]
    assert [one.at_ms for one in (await traces.of_request("req_2", OPERATOR))[0]] == [3, 4]


async def test_nobody_fills_the_room_of_anothers_request(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_trace_rows, "MAX_STEPS_PER_REQUEST", 2)
    traces = (await home.store()).pipeline_traces
    await traces.write([row("req_1", number, "bob") for number in range(5)])
    await traces.write([row("req_1", 7, "ann"), row("req_1", 8)])
    ann = Actor("ann", VouchedBy.BEARER, "private", "c", is_person=True)
    steps, cut = await traces.of_request("req_1", ann)
    assert ([one.at_ms for one in steps], cut) == ([7], False)
    everything, cut = await traces.of_request("req_1", OPERATOR)
    assert ([one.at_ms for one in everything], cut) == ([0, 1, 7, 8], True)
    nobody = Actor("", VouchedBy.BEARER, "private", "c", is_person=True)
    assert await traces.of_request("req_1", nobody) == ([], False)
    elsewhere = Actor(
        "ann", VouchedBy.BEARER, "private", "c", is_person=True, projects=frozenset({"prj_2"})
    )
    assert await traces.of_request("req_1", elsewhere) == ([], False)
