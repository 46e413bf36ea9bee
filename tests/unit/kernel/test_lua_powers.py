from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.lua_powers import (
    LuaPower,
    LuaPowerInvalid,
    LuaPowers,
    active_powers,
    answer_request,
    decide_power,
    parse_powers,
    print_powers,
)
from requirements import requirement
from unit.kernel.strategies import anything, patiently

powers = st.frozensets(st.sampled_from(LuaPower))
NAMES = ["session_write", "exec", "context", "env", "net", "fs_write", "provider", "crypto"]


def test_the_eight_names_are_known() -> None:
    assert [str(power) for power in LuaPower] == NAMES
    assert parse_powers(NAMES) == frozenset(LuaPower)


def test_repeats_count_once_and_nothing_is_no_power() -> None:
    assert parse_powers(["exec", "exec"]) == {LuaPower.EXEC}
    assert parse_powers([]) == frozenset()
    assert parse_powers(("exec",)) == {LuaPower.EXEC}


@pytest.mark.parametrize("value", ["exec", None, 1, {"exec": True}, True])
def test_a_grant_that_is_no_list_is_refused(value: object) -> None:
    with pytest.raises(LuaPowerInvalid, match="list of names"):
        parse_powers(value)


@requirement("LC-REQ-05")
def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LuaPowerInvalid) as caught:
        parse_powers(["exec", "sesion_write"])

    message = str(caught.value)
    assert "'sesion_write'" in message
    assert "did you mean session_write?" in message
    assert all(name in message for name in NAMES)


@pytest.mark.parametrize("name", ["read_agent", "read:fs:/x", "gog.email", "EXEC", "", None, 3, []])
def test_names_of_other_vocabularies_mean_nothing_here(name: object) -> None:
    with pytest.raises(LuaPowerInvalid):
        parse_powers([name])
    assert not decide_power(frozenset(LuaPower), cast("LuaPower", name)).allowed


@patiently
@given(powers)
def test_printing_and_reading_gives_the_set_back(held: LuaPowers) -> None:
    assert parse_powers(print_powers(held)) == held


@requirement("LC-GRANT-03", "LC-GRANT-06", "LC-REQ-02")
@patiently
@given(powers, powers, powers)
def test_a_power_is_active_when_granted_asked_for_and_shipped(
    granted: LuaPowers, requested: LuaPowers, shipped: LuaPowers
) -> None:
    active = active_powers(granted, requested, shipped)
    answer = answer_request(requested, granted, shipped)

    for power in LuaPower:
        held = power in granted and power in requested and power in shipped
        assert (power in active) is held
        assert answer.get(power, False) is held
        assert decide_power(active, power).allowed is held
    assert set(answer) == requested


@requirement("LC-GRANT-08")
def test_one_power_does_not_imply_another() -> None:
    for power in LuaPower:
        only = active_powers(frozenset({power}), frozenset(LuaPower), frozenset(LuaPower))
        assert only == {power}


def test_a_refused_power_says_both_things_it_takes() -> None:
    decision = decide_power(frozenset(), LuaPower.EXEC)

    assert decision.detail == "exec"
    assert "[plugins.capabilities]" in decision.remedy
    assert "ask" in decision.remedy


@patiently
@given(anything, anything)
def test_deciding_on_anything_never_raises(active: object, wanted: object) -> None:
    assert not decide_power(active, wanted).allowed  # type: ignore[arg-type] # that is the test
