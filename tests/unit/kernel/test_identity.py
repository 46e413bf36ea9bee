"""Who acts: what an actor is called, when two are the same, and whose accounts they may use."""

from __future__ import annotations

import dataclasses

import pytest

from kaged.kernel.identity import (
    EVERYTHING,
    NOTHING,
    Actor,
    People,
    PersonFacts,
    PersonGrant,
    VouchedBy,
)


def test_the_operator_on_an_own_listener_is_in_a_private_chat() -> None:
    actor = Actor.operator("ada", VouchedBy.UNIX)
    assert (actor.chat_type, actor.chat_id, actor.provider) == ("private", None, "kaged")
    assert not actor.is_person


def test_nobody_is_known_in_insecure_mode() -> None:
    actor = Actor.operator(None, VouchedBy.INSECURE, "req_1")
    assert actor.if_known is None
    assert actor.chat_type is None
    assert actor.label == "anonymous/insecure"
    assert actor.operator_name == "operator"
    assert actor.request_id == "req_1"


def test_a_known_person_acts_under_their_own_name() -> None:
    actor = Actor("ann", VouchedBy.BEARER, "group", "-100:7", is_person=True)
    assert actor.if_known is actor
    assert actor.label == actor.operator_name == "ann"


def test_the_same_actor_in_another_request_is_equal_and_looks_the_same() -> None:
    one = Actor.operator("ada", VouchedBy.COOKIE, "req_1")
    other = one.in_request("req_2")
    assert other.request_id == "req_2"
    assert (other, hash(other), repr(other)) == (one, hash(one), repr(one))


@pytest.mark.parametrize(
    "other",
    [
        Actor.operator("bob", VouchedBy.COOKIE),
        Actor.operator("ada", VouchedBy.UNIX),
        Actor("ada", VouchedBy.COOKIE, "private", provider="kaged", is_person=True),
        Actor("ada", VouchedBy.COOKIE, "group", provider="kaged"),
    ],
)
def test_another_person_voucher_or_chat_is_another_actor(other: Actor) -> None:
    assert other != Actor.operator("ada", VouchedBy.COOKIE)


def test_an_actor_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Actor.operator("ada", VouchedBy.UNIX).person_id = "bob"  # type: ignore[misc]


FACTS = PersonFacts("ann", frozenset({"dev"}), frozenset({"blue"}), (("dept", "r&d"),))


def test_a_person_has_the_roles_of_both_sides_and_the_reach_of_the_operators_side() -> None:
    grant = PersonGrant(frozenset({"lead"}), frozenset({"red"}), frozenset({"p"}), frozenset())
    actor = Actor.person(FACTS, grant, VouchedBy.BEARER, "req_1")
    assert (actor.person_id, actor.is_person, actor.request_id) == ("ann", True, "req_1")
    assert (actor.roles, actor.teams) == ({"dev", "lead"}, {"blue", "red"})
    assert actor.claims == (("dept", "r&d"),)
    assert (actor.projects, actor.operations) == ({"p"}, frozenset())
    assert isinstance(hash(actor), int)


def test_nobody_named_leaves_everything_open_and_somebody_named_closes_the_rest() -> None:
    assert People().grant_of("ann") is EVERYTHING
    grant = PersonGrant(projects=frozenset({"p"}))
    people = People({"ann": grant})
    assert people.grant_of("ann") is grant
    assert people.grant_of("bob") is NOTHING
    others = PersonGrant(roles=frozenset({"guest"}))
    people = People({"ann": grant, "*": others})
    assert (people.grant_of("ann"), people.grant_of("bob")) == (grant, others)
