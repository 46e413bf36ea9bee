from __future__ import annotations

import pytest

from kaged.config import ConfigFileInvalid, Origin, Problem, Severity
from kaged.config.problems import format_key_path, show_value


@pytest.mark.parametrize(
    ("path", "written"),
    [
        (("primary", "model"), "primary.model"),
        (("tools", "file.*", "enabled"), 'tools."file.*".enabled'),
        (("cage", "fs", 0, "mode"), "cage.fs[0].mode"),
        (("plugins", '@a/"b\\'), 'plugins."@a/\\"b\\\\"'),
        (("", "a b"), '""."a b"'),
        ((), ""),
    ],
)
def test_a_key_path_is_written_as_people_write_it(
    path: tuple[str | int, ...], written: str
) -> None:
    assert format_key_path(path) == written


def test_a_problem_is_one_clickable_line_with_its_fix() -> None:
    problem = Problem("p.yaml", 3, 5, "primary.modle", "is an unknown key", "did you mean model?")
    assert str(problem) == (
        "p.yaml:3:5: error: primary.modle: is an unknown key (did you mean model?)"
    )
    whole_file = Problem("p.yaml", None, None, "", "does not exist", severity=Severity.WARNING)
    assert str(whole_file) == "p.yaml: warning: does not exist"


def test_the_error_carries_every_problem_for_machines_and_counts_errors_only() -> None:
    error = ConfigFileInvalid(
        [
            Problem("p.yaml", 1, 1, "a", "is wrong"),
            Problem("p.yaml", 2, 1, "b", "is odd", severity=Severity.WARNING),
        ]
    )
    assert error.code == "config_invalid"
    assert error.message.startswith("1 problem in p.yaml:")
    listed = error.data["problems"]
    assert isinstance(listed, list)
    assert [item["key_path"] for item in listed if isinstance(item, dict)] == ["a", "b"]


def test_long_values_are_cut_in_messages() -> None:
    shown = show_value("x" * 500)
    assert len(shown) == 60
    assert shown.endswith("…")


def test_an_origin_says_file_and_line_or_why_it_is_a_default() -> None:
    assert str(Origin("a.toml", 7)) == "a.toml:7"
    assert str(Origin("a.toml", None, "whole file")) == "a.toml (whole file)"
    assert str(Origin(None, None, "default: nothing")) == "default: nothing"
    assert str(Origin(None, None)) == "default"
