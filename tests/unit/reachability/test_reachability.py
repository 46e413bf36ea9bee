"""Nothing in `src` lives by its tests alone: code has callers, declared names are used and shown.

`make reachability` prints the same as a report.
"""

from __future__ import annotations

import pytest

from reachability.declared import not_seen_yet
from reachability.programs import FOR_PEOPLE, NOT_WIRED, source_tree
from reachability.report import report

pytestmark = pytest.mark.timeout(600)  # all of the source is read


def test_every_public_function_has_a_caller_in_the_program() -> None:
    """Wire it, delete it, or say in `programs.FOR_PEOPLE` whose code calls it."""
    assert set(report().uncalled) == set(NOT_WIRED)


def test_what_is_said_to_be_called_by_people_exists() -> None:
    keys = [one.key for module in source_tree().values() for one in module.definitions]
    for name in FOR_PEOPLE:
        assert any(key == name or key.startswith((f"{name}.", f"{name}:")) for key in keys), name


def test_every_method_of_a_protocol_is_called_by_the_program() -> None:
    assert report().protocol_methods == ()


def test_every_declared_name_is_produced_or_read() -> None:
    assert [str(one) for one in report().unused] == []


def test_every_declared_name_is_shown_by_a_whole_test_or_listed() -> None:
    """A new name needs a whole test; the list never grows."""
    missing = {str(one) for one in report().not_seen}
    assert missing - set(not_seen_yet()) == set()


def test_a_listed_name_that_a_whole_test_shows_leaves_the_list() -> None:
    """Run `make reachability UPDATE=1` when this fails."""
    missing = {str(one) for one in report().not_seen}
    assert [line for line in not_seen_yet() if line not in missing] == []


def test_every_name_that_is_not_shown_stands_below_a_reason() -> None:
    assert [name for name, why in not_seen_yet().items() if not why] == []
