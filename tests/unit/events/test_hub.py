"""The event ring: numbers, gaps and bounds."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import Ids, ManualClock
from kaged.events.hub import (
    MAX_EVENT_BYTES,
    MAX_SUBSCRIBERS,
    EventHub,
    Gap,
    TooManySubscribers,
    topic_filter,
)


def _hub(events: int = 8, size: int = 1 << 20) -> EventHub:
    clock = ManualClock()
    return EventHub(clock, Ids(clock), ring_events=events, ring_bytes=size)


def test_events_are_numbered_from_one_without_holes() -> None:
    hub = _hub()
    assert [hub.publish("t", "n", {}) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert [event.seq for event in hub.read(0)] == [1, 2, 3, 4, 5]
    assert [event.seq for event in hub.read(3)] == [4, 5]
    assert hub.read(5) == []
    assert hub.read(99) == []


def test_an_event_carries_its_number_time_topic_and_data() -> None:
    hub = _hub()
    hub.publish("audit", "project.loaded", {"root": "/x"}, ts_ms=7)
    assert json.loads(hub.read(0)[0].text) == {
        "type": "event",
        "seq": 1,
        "ts_ms": 7,
        "topic": "audit",
        "name": "project.loaded",
        "data": {"root": "/x"},
    }


def test_a_reader_that_was_overtaken_has_a_gap() -> None:
    hub = _hub(events=3)
    for _ in range(10):
        hub.publish("t", "n", {})
    assert hub.oldest == 8
    assert hub.gap_after(7) is None
    assert hub.gap_after(6) == Gap(7, 7)
    assert hub.gap_after(0) == Gap(1, 7)


def test_an_empty_hub_has_no_gap() -> None:
    assert _hub().gap_after(0) is None


def test_a_huge_event_is_announced_without_its_data() -> None:
    hub = _hub()
    hub.publish("t", "big", {"text": "x" * MAX_EVENT_BYTES})
    event = json.loads(hub.read(0)[0].text)
    assert event["data"]["truncated"] is True
    assert event["name"] == "big"


def test_text_that_is_not_unicode_cannot_break_the_stream() -> None:
    hub = _hub()
    hub.publish("t", "n", {"text": "\udcff é"})
    hub.read(0)[0].text.encode("ascii")


def test_every_client_is_woken_and_the_number_of_clients_is_bounded() -> None:
    hub = _hub()
    with hub.subscribe() as one, hub.subscribe() as other:
        hub.publish("t", "n", {})
        assert one.is_set()
        assert other.is_set()
    assert hub.subscribers == 0

    from contextlib import ExitStack

    with ExitStack() as stack:
        for _ in range(MAX_SUBSCRIBERS):
            stack.enter_context(hub.subscribe())
        with pytest.raises(TooManySubscribers), hub.subscribe():
            pass


def test_closing_wakes_everybody() -> None:
    hub = _hub()
    with hub.subscribe() as waker:
        hub.close()
        assert waker.is_set()
    assert hub.closed


def test_a_topic_covers_its_parts() -> None:
    wanted = topic_filter(frozenset({"plugin", "session:ses_1"}))
    assert wanted("plugin")
    assert wanted("plugin:memory")
    assert wanted("session:ses_1")
    assert not wanted("session:ses_2")
    assert not wanted("session")
    assert not wanted("audit")
    assert topic_filter(frozenset())("anything")


def test_each_run_has_an_epoch_of_its_own() -> None:
    assert _hub().epoch != _hub().epoch


@given(
    sizes=st.lists(st.integers(0, 400), max_size=60),
    ring_events=st.integers(1, 10),
    ring_bytes=st.integers(1, 2000),
)
def test_the_ring_never_exceeds_its_bounds_and_never_loses_order(
    sizes: list[int], ring_events: int, ring_bytes: int
) -> None:
    hub = _hub(ring_events, ring_bytes)
    for size in sizes:
        hub.publish("t", "n", {"x": "y" * size})
        held = hub.read(0, limit=1000)
        assert len(held) <= ring_events
        assert sum(len(event.text) for event in held) <= ring_bytes
        numbers = [event.seq for event in held]
        assert numbers == list(range(hub.oldest, hub.latest + 1))


async def test_the_end_waits_for_the_last_reader_and_for_a_while_only() -> None:
    hub = _hub()
    gone: list[str] = []

    async def waits() -> None:
        await hub.readers_gone(60)
        gone.append("all")

    await hub.readers_gone(0)  # nobody ever read
    async with asyncio.TaskGroup() as group:
        with hub.subscribe(), hub.subscribe():
            group.create_task(waits())
            await hub.readers_gone(0.01)  # nor does it wait for ever
            assert gone == []
    assert gone == ["all"]
