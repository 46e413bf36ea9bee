"""Who may see, steer and manage whose things."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kaged.kernel.identity import Actor, VouchedBy
from kaged.kernel.ownership import (
    OPERATORS,
    AccessAction,
    Audience,
    Ownership,
    acting_in,
    may,
    may_answer,
    may_use_project,
    ownership_of,
)

OPERATOR = Actor.operator("op", VouchedBy.UNIX)
SEE, STEER, MANAGE = AccessAction.SEE, AccessAction.STEER, AccessAction.MANAGE


def person(name: str, chat_type: str | None = "private", chat_id: str | None = None) -> Actor:
    return Actor(name, VouchedBy.BEARER, chat_type, chat_id, is_person=True)


def test_what_somebody_begins_is_theirs_and_in_a_group_the_groups() -> None:
    assert ownership_of(OPERATOR) == OPERATORS == Ownership(None, None, Audience.OPERATOR)
    assert ownership_of(Actor.operator(None, VouchedBy.INSECURE)) == OPERATORS
    assert ownership_of(person("ann", "private", "c")) == Ownership("ann", "c", Audience.OWNER)
    assert ownership_of(person("ann", None)) == Ownership("ann", None, Audience.OWNER)
    assert ownership_of(person("ann", None, "c")) == Ownership("ann", "c", Audience.OWNER)
    assert ownership_of(person("ann", "group", "g")) == Ownership("ann", "g", Audience.CHAT)
    # A group without an id is no place that anybody else could be in.
    assert ownership_of(person("ann", "group")) == Ownership("ann", None, Audience.OWNER)


PRIVATE = Ownership("ann", "c", Audience.OWNER)
GROUP = Ownership("ann", "g", Audience.CHAT)


@pytest.mark.parametrize(
    ("actor", "thing", "allowed"),
    [
        (person("ann", "private", "c"), PRIVATE, {SEE, STEER, MANAGE}),
        (person("ann", "private", "another"), PRIVATE, {SEE, STEER, MANAGE}),
        (person("ann", "group", "g"), PRIVATE, set()),
        (person("ann", None, None), PRIVATE, set()),
        (person("bob", "private", "c"), PRIVATE, set()),
        (person("bob", "group", "c"), PRIVATE, set()),
        (person("ann", "group", "g"), GROUP, {SEE, STEER, MANAGE}),
        (person("ann", "private", "c"), GROUP, {SEE, STEER, MANAGE}),
        (person("bob", "group", "g"), GROUP, {SEE, STEER}),
        (person("bob", "group", "h"), GROUP, set()),
        (person("bob", "private", "g"), GROUP, {SEE, STEER}),
        (person("bob", "group", None), Ownership("ann", None, Audience.CHAT), set()),
        (person("ann", None, None), Ownership("ann", None, Audience.OWNER), {SEE, STEER, MANAGE}),
        (person("ann"), OPERATORS, set()),
        (person(""), Ownership("", None, Audience.OWNER), set()),
        (person("bob", "group", "g"), Ownership("", "g", Audience.CHAT), set()),
    ],
)
def test_each_person_may_do_with_a_thing(
    actor: Actor, thing: Ownership, allowed: set[AccessAction]
) -> None:
    assert {one for one in AccessAction if may(actor, one, thing)} == allowed


def test_the_operator_may_do_everything_with_everything() -> None:
    for thing, action in itertools.product((PRIVATE, GROUP, OPERATORS), AccessAction):
        assert may(OPERATOR, action, thing)
        assert may(Actor.operator(None, VouchedBy.INSECURE), action, thing)


@pytest.mark.parametrize(
    ("actor", "owner", "asked_in", "allowed"),
    [
        (person("ann", "private", "c"), "ann", "c", True),
        (person("ann", "private", "d"), "ann", "c", True),
        (person("ann", "group", "g"), "ann", "c", False),
        (person("ann", "group", "g"), "ann", "g", True),
        (person("ann", "group", "g"), "ann", None, True),
        (person("bob", "private", "c"), "ann", "c", False),
        (person("bob"), None, None, False),
        (person(""), "", None, False),
        (OPERATOR, "ann", "c", True),
        (OPERATOR, None, None, True),
    ],
)
def test_a_question_is_answered_where_it_was_asked_or_in_private(
    actor: Actor, owner: str | None, asked_in: str | None, allowed: bool
) -> None:
    assert may_answer(actor, owner, asked_in) is allowed


def test_a_project_that_somebody_may_not_use_hides_what_is_theirs_in_it() -> None:
    thing = Ownership("ann", "c", Audience.OWNER, "prj_1")
    for projects, allowed in ((None, True), ({"prj_1"}, True), ({"prj_2"}, False), (set(), False)):
        listed = None if projects is None else frozenset(projects)
        ann = replace(person("ann", "private", "c"), projects=listed)
        assert may_use_project(ann, "prj_1") is allowed
        assert {may(ann, action, thing) for action in AccessAction} == {allowed}
        assert may_answer(ann, "ann", "c", "prj_1") is allowed
        # What is about no project is not withheld, and the operator is not held to any list.
        assert may_answer(ann, "ann", "c")
        assert may_use_project(replace(OPERATOR, projects=listed), "prj_1")


@pytest.mark.parametrize(
    ("actor", "thing", "chat"),
    [
        # Alone with it, or there already: as they come.
        (person("ann", "private", "d"), PRIVATE, ("private", "d")),
        (person("ann", None, None), Ownership("ann", None, Audience.OWNER), (None, None)),
        (person("ann", "group", "g"), GROUP, ("group", "g")),
        (person("bob", "group", "g"), GROUP, ("group", "g")),
        (OPERATOR, OPERATORS, ("private", None)),
        # Others read along.
        (person("ann", "private", "c"), GROUP, (None, "g")),
        (person("ann", "private", "g"), GROUP, (None, "g")),
        (person("bob", "private", "g"), GROUP, (None, "g")),
        (OPERATOR, GROUP, (None, "g")),
        (OPERATOR, PRIVATE, (None, "c")),
        (person("bob", "private", "c"), PRIVATE, (None, "c")),
        # Whose id is that of the operator is somebody else, and so is nobody.
        (person("op", "private"), OPERATORS, (None, None)),
        (Actor.operator("ann", VouchedBy.UNIX), PRIVATE, (None, "c")),
    ],
)
def test_who_acts_where_others_read_along_is_not_in_private(
    actor: Actor, thing: Ownership, chat: tuple[str | None, str | None]
) -> None:
    acting = acting_in(replace(actor, thread_id="t"), thing)
    assert (acting.chat_type, acting.chat_id) == chat
    assert acting.person_id == actor.person_id
    kept = (acting.chat_type, acting.chat_id) == (actor.chat_type, actor.chat_id)
    assert acting.thread_id == ("t" if kept else None)
    # Once is enough: work that goes on is let in by the same rule.
    assert acting_in(acting, thing) == acting
