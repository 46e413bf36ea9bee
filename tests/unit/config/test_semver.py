from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.config.semver import Version, VersionInvalid, parse_range, parse_version

versions = st.builds(
    Version,
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.lists(st.sampled_from(["1", "2", "11", "alpha", "rc", "0a"]), max_size=2).map(tuple),
)


@pytest.mark.parametrize("text", ["1.4.2", "0.0.0", "1.0.0-rc.1", "1.0.0-0a.b-c", "2.0.0+build.7"])
def test_semantic_versions_are_read(text: str) -> None:
    assert str(parse_version(text)) == text.partition("+")[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.4",
        "latest",
        "v1.0.0",
        "1.4.2.1",
        "01.0.0",
        "1.0.0-",
        "1.0.0-01",
        "1.0.0\n",
        "\u0661.0.0",
    ],
)
def test_other_texts_are_no_versions(text: str) -> None:
    with pytest.raises(VersionInvalid):
        parse_version(text)


def test_precedence_is_that_of_the_specification() -> None:
    order = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
        "1.2.0",
        "2.0.0",
    ]
    parsed = [parse_version(text) for text in order]
    assert sorted(parsed, reverse=True) == parsed[::-1]


@pytest.mark.parametrize(
    ("constraint", "yes", "no"),
    [
        ("1.4.2", ["1.4.2"], ["1.4.3", "1.4.1", "1.4.2-rc"]),
        ("=1.4.2", ["1.4.2"], ["1.4.3"]),
        ("^1.2", ["1.2.0", "1.9.9"], ["1.1.9", "2.0.0", "1.5.0-rc"]),
        ("^1.2.3", ["1.2.3", "1.3.0"], ["1.2.2", "2.0.0"]),
        ("^0.2.3", ["0.2.3", "0.2.9"], ["0.3.0", "0.2.2"]),
        ("^0.0.3", ["0.0.3"], ["0.0.4"]),
        ("^0", ["0.0.0", "0.9.0"], ["1.0.0"]),
        ("~1.2.3", ["1.2.3", "1.2.9"], ["1.3.0"]),
        ("~1", ["1.0.0", "1.9.0"], ["2.0.0"]),
        ("1.x", ["1.0.0", "1.9.0"], ["2.0.0", "0.9.0"]),
        ("1.2.*", ["1.2.0", "1.2.9"], ["1.3.0"]),
        ("*", ["0.0.0", "9.9.9"], ["1.0.0-rc"]),
        (">=1.0 <2", ["1.0.0", "1.9.9"], ["0.9.9", "2.0.0", "2.0.0-rc"]),
        (">= 1.0   < 2", ["1.0.0"], ["2.0.0"]),
        (">1.2", ["1.3.0"], ["1.2.0", "1.2.9"]),
        (">1.2.3", ["1.2.4"], ["1.2.3"]),
        ("<=1.2", ["1.2.9", "0.1.0"], ["1.3.0"]),
        ("<=1.2.3", ["1.2.3"], ["1.2.4"]),
        (">=1.0.0-rc.1", ["1.0.0-rc.2", "1.0.0", "3.0.0"], ["1.0.0-alpha", "2.0.0-rc.1"]),
    ],
)
def test_constraints_take_what_people_expect(
    constraint: str, yes: list[str], no: list[str]
) -> None:
    wanted = parse_range(constraint)
    assert [text for text in yes if not wanted.matches(parse_version(text))] == []
    assert [text for text in no if wanted.matches(parse_version(text))] == []


@pytest.mark.parametrize("text", ["", "  ", "latest", ">*", "1.2.3.4", "^^1", "1 || 2", "x" * 300])
def test_other_texts_are_no_constraints(text: str) -> None:
    with pytest.raises(VersionInvalid):
        parse_range(text)


def test_a_plain_version_is_exact_and_a_range_takes_the_highest() -> None:
    assert parse_range("1.2.3").exact == Version(1, 2, 3)
    assert parse_range("^1.2.3").exact is None
    found = [Version(1, 0, 0), Version(1, 5, 0), Version(2, 0, 0), Version(1, 9, 0, ("rc",))]
    assert parse_range("1.x").highest(found) == Version(1, 5, 0)
    assert parse_range("3.x").highest(found) is None


@settings(deadline=None)
@given(versions, versions)
def test_a_version_matches_itself_and_lies_on_one_side_of_another(
    one: Version, other: Version
) -> None:
    assert parse_version(str(one)) == one
    assert parse_range(str(one)).matches(one)
    assert (one < other) + (one == other) + (one > other) == 1
    if not one.pre:
        assert parse_range(f"^{one}").matches(one)
        assert parse_range(f"~{one}").matches(one)
        assert parse_range(f">={one}").matches(other) == (other >= one and not other.pre)
