from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.extension_caps import (
    ExtensionCapabilities,
    ExtensionCapability,
    ExtensionCapabilityInvalid,
    closure,
    decide_extension,
    includes,
    parse_extension_capabilities,
    print_extension_capabilities,
)
from requirements import requirement
from unit.kernel.strategies import anything, patiently

caps = st.frozensets(st.sampled_from(ExtensionCapability))

CLOSURES = {
    "read_subject": {"read_subject"},
    "read_roles": {"read_roles", "read_subject"},
    "read_teams": {"read_teams", "read_subject"},
    "read_claims": {"read_claims", "read_subject"},
    "read_permissions": {"read_permissions", "read_subject"},
    "read_agent": {"read_agent"},
    "read_headers": {"read_headers"},
    "write_headers": {"write_headers", "read_headers"},
    "read_labels": {"read_labels"},
    "append_labels": {"append_labels", "read_labels"},
    "read_delegation": {"read_delegation"},
    "append_delegation": {"append_delegation", "read_delegation"},
}


@requirement("EX-CAP-14", "EX-CAP-15")
def test_the_set_is_these_twelve_names_with_these_implications_and_no_others() -> None:
    assert {
        str(cap): set(map(str, closure(frozenset({cap})))) for cap in ExtensionCapability
    } == CLOSURES


@patiently
@given(caps)
def test_the_closure_of_a_set_is_that_of_its_members(held: ExtensionCapabilities) -> None:
    expected: set[str] = set().union(*(CLOSURES[cap] for cap in held))

    assert closure(held) == expected
    assert closure(closure(held)) == closure(held)


@pytest.mark.parametrize("shape", [list, tuple, set, frozenset])
def test_names_are_read_from_any_collection(shape: type) -> None:
    value: object = shape(["read_headers", "append_labels"])

    assert parse_extension_capabilities(value) == {
        ExtensionCapability.READ_HEADERS,
        ExtensionCapability.APPEND_LABELS,
    }


def test_null_and_empty_give_none() -> None:
    assert parse_extension_capabilities(None) == frozenset()
    assert parse_extension_capabilities([]) == frozenset()


@pytest.mark.parametrize("value", ["read_headers", 1, {"read_headers": True}, b"x"])
def test_any_other_shape_is_refused(value: object) -> None:
    with pytest.raises(ExtensionCapabilityInvalid, match="list of names"):
        parse_extension_capabilities(value)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ExtensionCapabilityInvalid) as caught:
        parse_extension_capabilities(["read_labels", "read_header", 3])

    message = str(caught.value)
    assert "'read_header'" in message
    assert "did you mean read_headers?" in message
    assert "3" in message
    assert all(name in message for name in CLOSURES)


@pytest.mark.parametrize("name", ["exec", "read:fs:/x", "gog.email", "READ_AGENT", "", None, []])
def test_names_of_other_vocabularies_mean_nothing_here(name: object) -> None:
    with pytest.raises(ExtensionCapabilityInvalid):
        parse_extension_capabilities([name])
    everything = frozenset(ExtensionCapability)
    assert not decide_extension(everything, cast("ExtensionCapability", name)).allowed


@patiently
@given(caps)
def test_printing_and_reading_gives_the_set_back(held: ExtensionCapabilities) -> None:
    text = print_extension_capabilities(held)

    assert parse_extension_capabilities(text) == held
    assert text == sorted(text)


@patiently
@given(caps, caps, caps)
def test_inclusion_is_a_partial_order(
    a: ExtensionCapabilities, b: ExtensionCapabilities, c: ExtensionCapabilities
) -> None:
    assert includes(a, a)
    assert (includes(a, b) and includes(b, a)) is (closure(a) == closure(b))
    if includes(a, b) and includes(b, c):
        assert includes(a, c)
    assert includes(a | b, a)
    assert includes(a, b) is (closure(b) <= closure(a))


@patiently
@given(caps, st.sampled_from(ExtensionCapability))
def test_a_capability_is_allowed_exactly_when_held_or_implied(
    held: ExtensionCapabilities, wanted: ExtensionCapability
) -> None:
    decision = decide_extension(held, wanted)

    assert decision.allowed is any(wanted in CLOSURES[cap] for cap in held)
    assert decision.detail == wanted


@patiently
@given(anything, anything)
def test_deciding_on_anything_never_raises(held: object, wanted: object) -> None:
    assert not decide_extension(held, wanted).allowed  # type: ignore[arg-type] # that is the test
