"""What is recorded now and looked through later: as it was then, by the rules of then."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.audit_sink import MemorySink
from kaged.audit import AuditEvent, AuditLog, ChainKey, Redactor, verify_chain
from kaged.audit.credentials import REDACTED
from kaged.audit.pending import COPY_LIMIT_CHARS, PendingEvent
from kaged.audit.redact import Rules
from kaged.base import Ids, JsonObject, ManualClock

KEY = ChainKey(b"k" * 32)
BOUND_S = 20


class Level(IntEnum):
    LOW = 1


class Odd:
    """Nothing that JSON knows."""


def called(params: Any, **more: Any) -> AuditEvent:
    data = {
        "tool_name": "file.read",
        "caller": "primary",
        "session_id": "s",
        "run_id": "r",
        "request_id": "q",
        "params": params,
        **more,
    }
    return AuditEvent("tool.called", data)


def pending(event: AuditEvent, redactor: Redactor | None = None) -> PendingEvent:
    return PendingEvent(event, 0, (redactor or Redactor()).rules)


def test_what_changes_after_it_was_recorded_is_written_as_it_was() -> None:
    inner: list[Any] = ["a"]
    params: dict[str, Any] = {"paths": inner, "deep": {"one": 1}}
    waiting = pending(called(params))
    inner.append("b")
    params["deep"]["one"] = 2
    params["more"] = True
    assert '"params":{"deep":{"one":1},"paths":["a"]}' in waiting.texts()[2]


def test_a_secret_that_is_forgotten_meanwhile_is_still_taken_out() -> None:
    redactor = Redactor(["hunter22"])
    waiting = pending(called({"note": "it is hunter22"}), redactor)
    redactor.forget("hunter22")
    assert "hunter22" not in waiting.texts()[2]
    assert "hunter22" in pending(called({"note": "it is hunter22"}), redactor).texts()[2]


def test_a_text_found_clean_before_a_secret_was_learned_is_looked_at_again() -> None:
    redactor = Redactor()
    early = pending(called({"note": "hunter22"}), redactor)
    redactor.learn("hunter22")
    # In another thread the old rules find it clean after the new ones were made.
    assert "hunter22" in early.texts()[2]
    assert REDACTED in pending(called({"note": "hunter22"}), redactor).texts()[2]


@pytest.mark.parametrize(
    "value",
    [
        Odd(),
        [Odd()],
        OrderedDict(a=Odd()),
        Level.LOW,
        [Level.LOW],
        {"at": {1: 2}},
        {"b": b"bytes", "c": bytearray(b"x"), "m": memoryview(b"x")},
        {"set": {1}, "tuple": (1, "a")},
        {"nan": float("nan"), "huge": 2**80, "lone": "\ud800"},
        "x" * (COPY_LIMIT_CHARS + 1),
        {"text": ["y" * 500] * 100},
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_value_is_it_is_kept_as_if_it_were_redacted_at_once(value: Any) -> None:
    event = called(value)
    assert pending(event).texts()[2] == Redactor().encode(event)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(_JSON)
def test_a_copy_is_redacted_like_the_value_itself(value: Any) -> None:
    event = called({"password": "p", "value": value})
    assert pending(event).texts()[2] == Redactor().encode(event)


def test_a_value_that_holds_itself_is_kept_as_if_it_were_redacted_at_once() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert pending(called(value)).texts()[2] == Redactor().encode(called(value))


def test_what_waits_weighs_what_it_holds_and_large_values_only_what_is_left_of_them() -> None:
    small, large = pending(called({"text": "a" * 1000})), pending(called({"text": "a" * 10**6}))
    assert small.size > 1000
    assert large.size < 1000
    long_name = pending(called({}, source="s" * 10**6))
    assert long_name.size < 2000


async def test_an_event_that_cannot_be_redacted_is_written_without_its_data_and_harms_no_other(
    clock: ManualClock, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Rules.encode

    def broken(self: Rules, kind: Any, data: JsonObject) -> str:
        if data.get("tool_name") == "bad":
            raise RuntimeError("a fault of ours")
        return plain(self, kind, data)

    monkeypatch.setattr(Rules, "encode", broken)
    sink = MemorySink()
    log = await AuditLog.open(sink, clock=clock, ids=ids, key=KEY)
    for name in ("one", "bad", "two"):
        await log.record(called({}, tool_name=name), durable=False)
    async with asyncio.timeout(BOUND_S):
        await log.flush()
    await log.close()
    assert [row.data.get("tool_name") for row in sink.rows] == ["one", None, "two"]
    assert sink.rows[1].data == {"unreadable": "RuntimeError"}
    assert verify_chain(sink.rows, KEY).ok
