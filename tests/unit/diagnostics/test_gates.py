"""Start-up gates: each a row, also the one that is closed."""

from __future__ import annotations

import pytest

from kaged.base import KagedError
from kaged.base.checks import CheckRow, CheckStatus
from kaged.diagnostics.gates import Gates


def test_a_gate_that_is_passed_says_what_was_found() -> None:
    gates = Gates()
    with gates.passing("home", "Your data.") as gate:
        gate.found = "/home/ada"
    assert gates.rows == [CheckRow("home", CheckStatus.OK, "Your data.", "/home/ada")]


def test_a_gate_can_let_pass_and_tell() -> None:
    gates = Gates()
    with gates.passing("tcp", "The listener.") as gate:
        gate.warn("wide open", "close it")
    (row,) = gates.rows
    assert (row.status, row.cause, row.fix) == (CheckStatus.WARN, "wide open", "close it")


def test_a_closed_gate_is_a_row_with_the_fix_and_stops_the_start() -> None:
    gates = Gates()
    with pytest.raises(KagedError), gates.passing("store", "Memory."):
        raise KagedError("It is damaged.", fix="Restore it.")
    (row,) = gates.rows
    assert (row.status, row.cause, row.fix) == (CheckStatus.FAIL, "It is damaged.", "Restore it.")
