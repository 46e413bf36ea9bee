"""Paths of requests: one spelling, every reading, and patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base.errors import KagedError
from kaged.kernel.request_paths import (
    PathPatternInvalid,
    RequestPathInvalid,
    check_pattern,
    parse_path,
    path_matches,
    path_may_match,
    text_matches,
)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("/", "/"),
        ("/repos/acme", "/repos/acme"),
        ("/%72epos/a%2dc%7e", "/repos/a-c~"),
        ("/a%2fb", "/a%2Fb"),
        ("/%e2%82%ac", "/%E2%82%AC"),
        ("/@scope%2fname", "/@scope%2Fname"),
        ("/100%25", "/100%25"),
    ],
)
def test_equal_paths_have_one_spelling(raw: str, text: str) -> None:
    assert parse_path(raw).text == text


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "x",
        "*",
        "/a/../b",
        "/a/%2e%2e/b",
        "/a/.%2E/b",
        "/./a",
        "/a/..",
        "/a/..;x/b",
        "/a/..%3Bx/b",
        "/a%2f..%2fb",
        "/a%2F%2e%2e%2Fb",
        "/a\\b",
        "/a%5cb",
        "/a%00b",
        "/a%0d%0ab",
        "/a%7fb",
        "/a b",
        "/a\tb",
        "/a?b",
        "/a#b",
        "/a%",
        "/a%2",
        "/a%zz",
        "/a%252e%252e",
        "/ä",
        "/" + "a" * 9000,
        "/a" * 300,
        "http://x/a",
    ],
)
def test_a_path_that_servers_would_read_differently_is_refused(raw: str) -> None:
    with pytest.raises(RequestPathInvalid):
        parse_path(raw)


@pytest.mark.parametrize(
    ("pattern", "path", "whether"),
    [
        ("/repos/*", "/repos/a", True),
        ("/repos/*", "/repos/a/b", False),
        ("/repos/*", "/repos", False),
        ("/repos/**", "/repos/a/b", True),
        ("/repos/**", "/repos", True),
        ("/repos/**", "/reposx", False),
        ("/**", "/", True),
        ("/**/x", "/a/b/x", True),
        ("/**/x/*", "/a/x/b/x/c", True),
        ("/a/**/z", "/a/z", True),
        ("/a/**/z", "/a/b/c/y", False),
        ("/a*c*e", "/abcde", True),
        ("/a*c*e", "/ace", True),
        ("/a*c*e", "/ae", False),
        ("/ab*ba", "/aba", False),
        # Every reading must match, so an escaped slash leads nowhere else.
        ("/repos/*", "/repos/a%2Fb", False),
        ("/repos/**", "/repos/a%2Fb", True),
        ("/repos/*", "/repos//a", False),
        ("/repos/**", "/repos//a", True),
        ("/Repos/*", "/repos/a", False),
    ],
)
def test_patterns_match_whole_paths(pattern: str, path: str, whether: bool) -> None:
    assert path_matches(check_pattern(pattern), parse_path(path)) is whether


@pytest.mark.parametrize("path", ["/admin/x", "/ADMIN/x", "/admin%2Fx", "//admin/x", "/%61dmin/x"])
def test_a_denial_covers_every_reading_and_letter_case(path: str) -> None:
    assert path_may_match("/admin/**", parse_path(path))


@pytest.mark.parametrize("pattern", ["", "a", "/a b", "/a**", "/**b/c", "/a/../b", "/ä", "/a?b"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PathPatternInvalid):
        check_pattern(pattern)


@given(st.text(alphabet="/.%2eEfF5cCa;\\", max_size=40))
def test_no_accepted_path_has_a_dot_segment_in_any_reading(tail: str) -> None:
    try:
        path = parse_path("/" + tail)
    except KagedError:
        return
    for segments in path.readings:
        assert not {one.partition(";")[0] for one in segments} & {".", ".."}
    assert parse_path(path.text) == path


@given(st.lists(st.sampled_from(["a", "b", "*"]), max_size=8), st.text("ab", max_size=10))
def test_stars_match_as_a_slow_matcher_does(parts: list[str], text: str) -> None:
    def slow(pattern: str, rest: str) -> bool:
        if not pattern:
            return not rest
        if pattern[0] == "*":
            return any(slow(pattern[1:], rest[at:]) for at in range(len(rest) + 1))
        return rest[:1] == pattern[0] and slow(pattern[1:], rest[1:])

    pattern = "".join(parts)
    assert text_matches(pattern, text) is slow(pattern, text)
