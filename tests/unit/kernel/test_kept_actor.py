"""What is kept of an actor: who they were, and nothing that lets them do anything."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kaged.kernel.identity import Actor, PersonFacts, PersonGrant, VouchedBy
from kaged.kernel.kept_actor import KeptActor

FACTS = PersonFacts("ann", frozenset({"dev"}), frozenset({"blue"}), (("a", "b"),), frozenset({"g"}))
GRANT = PersonGrant(frozenset({"lead"}), projects=frozenset({"p1"}), operations=frozenset())
ANN = replace(
    Actor.person(FACTS, GRANT, VouchedBy.BEARER),
    chat_type="group", chat_id="g-1", thread_id="t-1", source_username="annie",
)  # fmt: skip


def _kept(actor: Actor) -> KeptActor:
    found = KeptActor.of(actor, 5)
    assert found is not None
    again = KeptActor.from_json(json.loads(json.dumps(found.as_json())))
    assert again == found
    return found


def test_somebody_comes_back_with_what_is_allowed_then() -> None:
    kept = _kept(ANN)
    assert kept.verified_at_ms == 5
    assert kept.person(kept.facts, GRANT) == ANN
    less = kept.person(kept.facts, PersonGrant(projects=frozenset()))
    assert (less.roles, less.projects, less.chat_id) == ({"dev"}, set(), "g-1")


def test_the_operator_comes_back_as_the_operator_and_nobody_is_kept_of_nobody() -> None:
    operator = Actor.operator("ada", VouchedBy.UNIX)
    assert _kept(operator).operator() == replace(operator, facts=PersonFacts("ada"))
    assert KeptActor.of(Actor.operator(None, VouchedBy.INSECURE), 5) is None


@pytest.mark.parametrize(
    "broken",
    [
        None, [], {}, {"facts": None}, {"facts": {"person_id": ""}}, {"vouched_by": "me"},
        {"verified_at_ms": "now"}, {"facts": {"person_id": "ann", "claims": []}},
    ],
)  # fmt: skip
def test_what_is_not_whole_is_nobody(broken: Any) -> None:
    whole = _kept(ANN).as_json()
    value = {**whole, **broken} if isinstance(broken, dict) and broken else broken
    assert KeptActor.from_json(value) is None


def test_who_is_not_known_to_be_the_operator_is_a_person() -> None:
    written = _kept(Actor.operator("ada", VouchedBy.UNIX)).as_json()
    del written["is_person"]
    again = KeptActor.from_json(written)
    assert again is not None
    assert again.is_person
