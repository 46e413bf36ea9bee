from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.paths import (
    MAX_PATH_BYTES,
    PathInvalid,
    contains,
    is_normal,
    join,
    normalise,
    overlaps,
    parents,
)
from unit.kernel.strategies import paths, patiently, small_paths


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/./.", "/"),
        ("/a//b/./c/", "/a/b/c"),
        ("/a/...", "/a/..."),
        ("/a/..b", "/a/..b"),
        ("/caf\udce9", "/caf\udce9"),
        ("/" + "a" * (MAX_PATH_BYTES - 1), "/" + "a" * (MAX_PATH_BYTES - 1)),
    ],
)
def test_a_path_has_one_spelling(text: str, normal: str) -> None:
    assert normalise(text) == normal
    assert is_normal(normal)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "./a",
        "~/a",
        "/a/../b",
        "/..",
        "/a/..",
        "/a\0b",
        "/\ud800",
        "/" + "a" * MAX_PATH_BYTES,
        "/" + "é" * (MAX_PATH_BYTES // 2 + 1),
    ],
)
def test_what_is_no_plain_absolute_path_is_refused(text: str) -> None:
    with pytest.raises(PathInvalid):
        normalise(text)
    assert not is_normal(text)
    assert not contains(text, "/a")
    assert not contains("/", text)


def test_the_refusal_of_a_relative_path_says_what_to_do() -> None:
    with pytest.raises(PathInvalid, match="begin it with /"):
        normalise("data")


@pytest.mark.parametrize(
    ("parent", "child", "inside"),
    [
        ("/srv", "/srv", True),
        ("/srv", "/srv/a/b", True),
        ("/srv/", "/srv//a", True),
        ("/", "/srv", True),
        ("/srv", "/srv-secret", False),
        ("/srv", "/srvx/a", False),
        ("/srv/a", "/srv", False),
    ],
)
def test_containment_goes_by_components(parent: str, child: str, inside: bool) -> None:
    assert contains(parent, child) is inside


@patiently
@given(paths, paths)
def test_containment_agrees_with_the_standard_library(parent: str, child: str) -> None:
    assert contains(parent, child) is PurePosixPath(child).is_relative_to(parent)


@patiently
@given(small_paths, small_paths)
def test_containment_agrees_where_paths_are_close(parent: str, child: str) -> None:
    pure = PurePosixPath(child)
    assert contains(parent, child) is (PurePosixPath(parent) in (pure, *pure.parents))


@patiently
@given(st.text(max_size=30))
def test_normalising_twice_changes_nothing_and_never_grows(text: str) -> None:
    try:
        once = normalise(text)
    except PathInvalid:
        return
    assert normalise(once) == once
    assert len(once) <= len(text)
    assert ".." not in once.split("/")


@patiently
@given(paths, st.text(max_size=20))
def test_joining_never_leaves_the_base(base: str, below: str) -> None:
    try:
        joined = join(base, below)
    except PathInvalid:
        return
    assert contains(base, joined)


@patiently
@given(small_paths, small_paths)
def test_paths_overlap_when_one_contains_the_other(one: str, other: str) -> None:
    expected = contains(one, other) or contains(other, one)
    assert overlaps(normalise(one), normalise(other)) is expected


@patiently
@given(paths)
def test_parents_are_those_of_the_standard_library(path: str) -> None:
    assert list(parents(normalise(path))) == list(map(str, PurePosixPath(path).parents))
