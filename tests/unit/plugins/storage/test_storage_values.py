"""Values on their way in and out, and the params of requests."""

from __future__ import annotations

from typing import Any

import pytest

from kaged.plugins.storage.names import PluginSchema
from kaged.plugins.storage.requests import parse_request, parse_transaction
from kaged.plugins.storage.statement import Rewritten, StatementKind
from kaged.plugins.storage.values import VALUES_LIMIT, parse_values, shape_rows
from kaged.store.guest import FaultKind, GuestFault, GuestRows, GuestStatement
from kaged.wire.errors import InvalidParams, StorageAccessDenied

PLAIN = Rewritten(StatementKind.SELECT, GuestStatement("SELECT 1"))


def test_plain_values_are_bound_as_they_are_and_booleans_as_numbers() -> None:
    values: list[Any] = [None, True, False, 0, -(2**63), 2**63 - 1, 1.5, "", "x'; DROP TABLE t"]
    assert parse_values(values) == (
        None, 1, 0, 0, -(2**63), 2**63 - 1, 1.5, "", "x'; DROP TABLE t",
    )  # fmt: skip


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**30, [1], {"a": 1}, float("inf"), float("nan")]
)
def test_other_values_are_invalid_params(value: Any) -> None:
    with pytest.raises(InvalidParams, match=r"params\[1\]"):
        parse_values(["fine", value])


@pytest.mark.parametrize("raw", [None, {}, "x", 5, [0] * (VALUES_LIMIT + 1)])
def test_params_are_a_list_of_a_bounded_length(raw: Any) -> None:
    with pytest.raises(InvalidParams):
        parse_values(raw)


def test_a_request_without_params_has_none() -> None:
    assert parse_request({"sql": "SELECT 1", "more": [1]}).values == ()


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"sql": 5},
        {"sql": None},
        {"sql": "SELECT 1", "params": {}},
        {"sql": "SELECT 1", "params": None},
        {"sql": "SELECT 1", "transaction": 5},
    ],
)
def test_a_request_of_another_shape_is_invalid(params: Any) -> None:
    with pytest.raises(InvalidParams):
        parse_request(params)


@pytest.mark.parametrize("params", [None, [], {}, {"transaction": 5}])
def test_a_transaction_has_to_be_named(params: Any) -> None:
    with pytest.raises(InvalidParams):
        parse_transaction(params)


def test_rows_are_objects_with_blobs_as_text() -> None:
    rows = GuestRows(("a", "b", "c"), [(1, b"\xff\x00", float("inf")), (None, "x", 2.5)], 3)
    assert shape_rows(rows, PLAIN, 1000) == {
        "rows": [{"a": 1, "b": "/wA=", "c": None}, {"a": None, "b": "x", "c": 2.5}],
        "columns": ["a", "b", "c"],
    }


def test_an_answer_that_grows_by_its_escapes_is_too_large() -> None:
    rows = GuestRows(("a",), [("\x01" * 500,)], 500)
    with pytest.raises(GuestFault) as caught:
        shape_rows(rows, PLAIN, 2000)
    assert caught.value.kind is FaultKind.RESULT
    assert shape_rows(rows, PLAIN, 4000)["columns"] == ["a"]


def test_prefixes_of_different_plugins_differ() -> None:
    assert PluginSchema.of("oh-my-pi").prefix == "plugin_oh_my_pi_"
    assert PluginSchema.of("oh-my-pi").physical("Presets") == "plugin_oh_my_pi_Presets"


@pytest.mark.parametrize("name", ["sqlite_x", "SQLITE_X", "plugin_x", "Pragma_x"])
def test_reserved_names_are_outside(name: str) -> None:
    with pytest.raises(StorageAccessDenied):
        PluginSchema.of("x").physical(name)


def test_a_prefix_is_taken_out_of_any_text() -> None:
    schema = PluginSchema.of("foo")
    text = 'UNIQUE constraint failed: PLUGIN_foo_t.a, "plugin_foo_u"'
    assert schema.hide(text) == 'UNIQUE constraint failed: t.a, "u"'
    assert schema.hide("plugin_other_t") == "plugin_other_t"
