from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.config.toolrules import ToolRule, glob_matches


@settings(deadline=None)
@given(st.text("ab.*", max_size=8), st.text("ab.", max_size=8))
def test_globs_agree_with_the_standard_library(pattern: str, name: str) -> None:
    assert glob_matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


def test_a_star_matches_dots_too() -> None:
    assert glob_matches("file.*", "file.read")
    assert glob_matches("kaged.*", "kaged.issue.create")
    assert not glob_matches("file.*", "edit.text")
    assert not glob_matches("file.*", "file")


def test_no_pattern_makes_matching_slow() -> None:
    assert not glob_matches("*a" * 100 + "b", "a" * 10_000)


@pytest.mark.parametrize(
    ("patterns", "name", "winner"),
    [
        (["file.*", "file.write"], "file.write", "file.write"),
        (["*", "file.*", "f*"], "file.write", "file.*"),
    ],
)
def test_the_most_specific_rule_can_be_told(patterns: list[str], name: str, winner: str) -> None:
    for order in (patterns, patterns[::-1]):
        rules = [ToolRule(pattern, enabled=True, line=1) for pattern in order]
        matching = [rule for rule in rules if rule.matches(name)]
        assert max(matching, key=lambda rule: rule.specificity).pattern == winner
