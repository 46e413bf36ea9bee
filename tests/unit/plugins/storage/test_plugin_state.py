"""What the broker keeps for one plugin: remembered statements, the open transaction."""

from __future__ import annotations

import pytest

from kaged.base import ManualClock
from kaged.plugins.storage.names import PluginSchema
from kaged.plugins.storage.plugin_state import (
    REMEMBERED_LIMIT_CHARS,
    REMEMBERED_STATEMENTS,
    REST_S,
    TRANSACTION_IDLE_S,
    TRANSACTION_STATEMENTS,
    PluginStorageState,
    StorageTransaction,
)
from kaged.plugins.storage.statement import Rewritten, StatementKind
from kaged.store.guest import GuestStatement, GuestStep
from kaged.wire.errors import PluginError, ResourceBusy


def state() -> PluginStorageState:
    return PluginStorageState(PluginSchema.of("foo"))


def statement(sql: str = "DELETE FROM t") -> Rewritten:
    return Rewritten(StatementKind.DELETE, GuestStatement(sql))


def test_statements_are_remembered_the_latest_used_longest() -> None:
    kept = state()
    kept.remember("first", statement())
    for number in range(REMEMBERED_STATEMENTS - 1):
        kept.remember(f"s{number}", statement())
    assert kept.recall("first") is not None  # and so used again
    kept.remember("one more", statement())
    assert kept.recall("s0") is None
    assert kept.recall("first") is not None


def test_a_long_statement_is_not_remembered() -> None:
    kept = state()
    kept.remember("x" * (REMEMBERED_LIMIT_CHARS + 1), statement())
    assert kept.recall("x" * (REMEMBERED_LIMIT_CHARS + 1)) is None


def test_a_transaction_ends_when_it_is_idle_for_too_long(clock: ManualClock) -> None:
    kept = state()
    kept.transaction = StorageTransaction("txn_1", clock.monotonic_s())
    clock.advance(TRANSACTION_IDLE_S)
    held = kept.require("txn_1", clock.monotonic_s())
    held.add(statement(), GuestStep(GuestStatement("DELETE FROM t")), clock.monotonic_s())
    clock.advance(TRANSACTION_IDLE_S)
    assert kept.current(clock.monotonic_s()) is held
    clock.advance(0.001)
    with pytest.raises(PluginError):
        kept.require("txn_1", clock.monotonic_s())
    assert kept.transaction is None


def test_a_transaction_of_another_id_is_not_found(clock: ManualClock) -> None:
    kept = state()
    kept.transaction = StorageTransaction("txn_1", clock.monotonic_s())
    with pytest.raises(PluginError):
        kept.require("txn_2", clock.monotonic_s())


def test_a_transaction_holds_a_bounded_number_of_statements() -> None:
    held = StorageTransaction("txn_1", 0.0)
    step = GuestStep(GuestStatement("DELETE FROM t"))
    for _ in range(TRANSACTION_STATEMENTS):
        held.add(statement(), step, 0.0)
    with pytest.raises(PluginError) as caught:
        held.add(statement(), step, 0.0)
    assert caught.value.detail == {
        "limit": "transaction_statements",
        "value": TRANSACTION_STATEMENTS,
    }


def test_a_transaction_holds_a_bounded_amount_of_text() -> None:
    held = StorageTransaction("txn_1", 0.0)
    step = GuestStep(GuestStatement("DELETE FROM t"), ("x" * 1_000_000,))
    for _ in range(4):
        held.add(statement(), step, 0.0)
    with pytest.raises(PluginError, match="too large"):
        held.add(statement(), step, 0.0)
    assert len(held.steps) == 4


def test_writes_rest_after_one_that_took_too_long(clock: ManualClock) -> None:
    kept = state()
    kept.require_rested(clock.monotonic_s())
    kept.rest(clock.monotonic_s())
    clock.advance(REST_S - 1)
    with pytest.raises(ResourceBusy) as caught:
        kept.require_rested(clock.monotonic_s())
    assert caught.value.detail == {"retry_after_seconds": 1.0}
    clock.advance(1)
    kept.require_rested(clock.monotonic_s())
