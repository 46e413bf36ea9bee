from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.service_ids import (
    MAX_OPERATION_CHARS,
    MAX_PART_CHARS,
    Namespace,
    ServiceId,
    ServiceIdInvalid,
    decide_offer,
    decide_service,
    parse_namespace,
    parse_operation,
    parse_service_id,
    parse_service_ids,
    print_service_ids,
)
from unit.kernel.strategies import anything, patiently

parts = st.builds(str.__add__, st.sampled_from("ab09z"), st.text("ab09z_-", max_size=4))
service_ids = st.builds(ServiceId, parts.map(Namespace), parts)

BAD_PARTS = ["", " ", "-a", "_a", "A", "a b", "a:b", "a\n", "\na", "é", "a/b", "a" * 65]


@pytest.mark.parametrize("text", ["gog.email", " gog.email ", "\tgog.email", "0.1", "a_b-c.d_e-f"])
def test_a_full_id_is_read(text: str) -> None:
    assert parse_service_id(text).text == text.strip()


@pytest.mark.parametrize(
    "value",
    [
        "email",
        "",
        "a.b.c",
        "Gog.email",
        ".email",
        "gog.",
        "gog .email",
        "gog.email\n",
        "gog\n.email",
        None,
        5,
        ["gog.email"],
        *(f"gog.{part}" for part in BAD_PARTS),
        *(f"{part}.email" for part in BAD_PARTS if part.strip()),
    ],
)
def test_anything_but_a_full_id_is_refused(value: object) -> None:
    # Blanks at the edge are trimmed; every other blemish counts.
    if value != "gog. ":
        with pytest.raises(ServiceIdInvalid) as caught:
            parse_service_id(value)
        assert caught.value.code == "capability_invalid_input"


def test_the_longest_parts_are_taken() -> None:
    part = "a" * MAX_PART_CHARS

    assert parse_service_id(f"{part}.{part}") == ServiceId(Namespace(part), part)


def test_namespaces_are_read_alike() -> None:
    assert parse_namespace(" gog ") == "gog"
    for bad in [*BAD_PARTS, "a.b", None, 3]:
        with pytest.raises(ServiceIdInvalid):
            parse_namespace(bad)


def test_operations_are_names_that_can_be_shown() -> None:
    assert parse_operation(" list_messages ") == "list_messages"
    for bad in ["", "  ", "a\nb", "a" * (MAX_OPERATION_CHARS + 1), None, 3]:
        with pytest.raises(ServiceIdInvalid):
            parse_operation(bad)


def test_a_list_of_ids_is_read_whole() -> None:
    ids = parse_service_ids(["gog.email", "acme.email", " gog.email"])

    assert print_service_ids(ids) == ["acme.email", "gog.email"]
    with pytest.raises(ServiceIdInvalid, match="list"):
        parse_service_ids("gog.email")
    with pytest.raises(ServiceIdInvalid):
        parse_service_ids(["gog.email", "email"])


@patiently
@given(service_ids)
def test_printing_and_reading_gives_the_id_back(service_id: ServiceId) -> None:
    assert parse_service_id(service_id.text) == service_id


@patiently
@given(st.frozensets(service_ids, max_size=5))
def test_printing_and_reading_gives_the_set_back(ids: frozenset[ServiceId]) -> None:
    assert parse_service_ids(print_service_ids(ids)) == ids


@patiently
@given(service_ids, st.data())
def test_a_character_outside_the_grammar_spoils_an_id(
    service_id: ServiceId, data: st.DataObject
) -> None:
    text = service_id.text
    at = data.draw(st.integers(1, len(text) - 1))
    wrong = data.draw(st.characters(blacklist_characters="abcdefghijklmnopqrstuvwxyz0123456789_-"))

    with pytest.raises(ServiceIdInvalid):
        parse_service_id(text[:at] + wrong + text[at:])


@patiently
@given(service_ids, service_ids)
def test_a_provider_offers_ids_of_its_own_namespace_only(one: ServiceId, other: ServiceId) -> None:
    decision = decide_offer(one.namespace, other)

    assert decide_offer(one.namespace, one).allowed
    assert decision.allowed is (one.namespace == other.namespace)
    if not decision.allowed:
        assert decision.code == "capability_invalid_input"
        assert other.text in decision.detail


@patiently
@given(st.frozensets(service_ids, max_size=4), service_ids)
def test_a_skill_may_call_exactly_what_it_declared(
    declared: frozenset[ServiceId], wanted: ServiceId
) -> None:
    decision = decide_service(declared, wanted)

    assert decision.allowed is (wanted.text in print_service_ids(declared))
    assert decide_service(declared | {wanted}, wanted).allowed
    if not decision.allowed:
        assert decision.code == "capability_access_denied"
        assert decision.detail == wanted.text


@patiently
@given(anything, anything)
def test_deciding_on_anything_never_raises(one: object, other: object) -> None:
    assert not decide_offer(cast("Namespace", one), cast("ServiceId", other)).allowed
    wanted = ServiceId(Namespace("gog"), "email")
    assert not decide_service(cast("frozenset[ServiceId]", one), wanted).allowed
