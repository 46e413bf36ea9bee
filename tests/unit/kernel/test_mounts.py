from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.mounts import Mount, MountGlob, MountTable, has_magic
from kaged.kernel.paths import contains, is_normal
from kaged.kernel.policy import FsMode
from unit.kernel.strategies import modes, paths, patiently, small_paths

RO, RW = FsMode.RO, FsMode.RW


def table(*mounts: tuple[str, FsMode]) -> MountTable:
    return MountTable(Mount(path, mode, pattern=has_magic(path)) for path, mode in mounts)


@patiently
@given(st.lists(st.tuples(small_paths, modes), max_size=5), small_paths)
def test_the_mount_with_the_most_components_decides(
    mounts: list[tuple[str, FsMode]], path: str
) -> None:
    covering = [(len(p.rstrip("/")), m) for p, m in mounts if contains(p, path)]
    deepest = max((depth for depth, _ in covering), default=0)
    found = {mode for depth, mode in covering if depth == deepest}
    expected = RW if RW in found else RO if found else None

    assert table(*mounts).mode_at(path) is expected


@patiently
@given(st.lists(st.tuples(small_paths, modes), max_size=5), small_paths)
def test_a_place_holds_mounts_when_one_lies_at_or_below_it(
    mounts: list[tuple[str, FsMode]], path: str
) -> None:
    assert table(*mounts).holds_below(path) is any(contains(path, p) for p, _ in mounts)


@patiently
@given(paths, st.sampled_from(["", "/", "//", "/.", "/..", "/./a", "/../a", "\0", "//a"]))
def test_a_path_that_was_not_resolved_is_mounted_nowhere(path: str, tail: str) -> None:
    everything = table(("/", RW))
    odd = path + tail

    assert (everything.mode_at(odd) is not None) is is_normal(odd)
    assert is_normal(odd) or not everything.holds_below(odd)


@pytest.mark.parametrize("path", ["", "a", "./a", "../a", "a/b"])
def test_a_relative_path_is_mounted_nowhere(path: str) -> None:
    assert table(("/", RW)).mode_at(path) is None
    assert not table(("/", RW)).holds_below(path)


@pytest.mark.parametrize("path", ["", "a", "/a/", "/a/..", "/a//b", "/a\0"])
def test_a_mount_that_was_not_resolved_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not absolute"):
        MountTable([Mount(path, RO)])


def test_a_mount_of_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="rwx"):
        MountTable([Mount("/a", "rwx")])  # type: ignore[arg-type] # that is the test


def test_a_file_grants_itself_alone() -> None:
    files = MountTable([Mount("/p", RO), Mount("/p/README.md", RW, file=True)])

    assert files.mode_at("/p/README.md") is RW
    assert files.mode_at("/p/README.md.bak") is RO
    assert files.mode_at("/p/README.md/x") is RO
    assert MountTable([Mount("/p/a", RW, file=True)]).mode_at("/p/a/b") is None
    assert files.holds_below("/p/README.md")
    assert not files.holds_below("/p/README.md.bak")


def test_reading_and_writing_one_place_is_writing() -> None:
    assert table(("/a", RW), ("/a", RO)).mode_at("/a/b") is RW
    assert table(("/a", RO), ("/a", RW)).mode_at("/a/b") is RW
    assert table(("/a/*", RW), ("/a/*", RO)).mode_at("/a/b") is RW


@pytest.mark.parametrize(
    ("pattern", "path", "granted"),
    [
        ("/p/src/*.py", "/p/src/a.py", True),
        ("/p/src/*.py", "/p/src/a.pyc", False),
        ("/p/src/*.py", "/p/src/sub/a.py", False),
        ("/p/src/*.py", "/p/src", False),
        ("/p/src/*.py", "/p/src/.a.py", False),
        ("/p/src/.*", "/p/src/.env", True),
        ("/p/*/docs", "/p/x/docs", True),
        ("/p/*/docs", "/p/x/docs/a/b", True),
        ("/p/*/docs", "/p/x/docsy", False),
        ("/p/*/docs", "/p/x/y/docs", False),
        ("/p/?", "/p/a", True),
        ("/p/?", "/p/ab", False),
        ("/p/?", "/p/.", False),
        ("/p/[ab]", "/p/a", True),
        ("/p/[!ab]", "/p/a", False),
        ("/p/[!ab]", "/p/c", True),
        ("/p/[", "/p/[", True),
        ("/p/**", "/p", True),
        ("/p/**", "/p/a/b", True),
        ("/p/**", "/q", False),
        ("/p/**/*.py", "/p/a.py", True),
        ("/p/**/*.py", "/p/a/b/c.py", True),
        ("/p/**/*.py", "/p/a/.git/c.py", False),
        ("/p/**/x/**/y", "/p/x/y", True),
        ("/p/**/x/**/y", "/p/1/x/2/3/y/4", True),
        ("/p/**/x/**/y", "/p/1/y", False),
        ("/**", "/", True),
        ("/*", "/a/b", True),
    ],
)
def test_a_pattern_grants_exactly_what_it_matches(pattern: str, path: str, granted: bool) -> None:
    assert table((pattern, RW)).mode_at(path) is (RW if granted else None)


@pytest.mark.parametrize(
    ("pattern", "path", "holds"),
    [
        ("/p/src/*.py", "/", True),
        ("/p/src/*.py", "/p/src", True),
        ("/p/src/*.py", "/p/src/a.py", True),
        ("/p/src/*.py", "/p/src/a.py/x", True),
        ("/p/src/*.py", "/p/src/sub", False),
        ("/p/src/*.py", "/p/data", False),
        ("/p/**/*.py", "/p/any/where", True),
        ("/p/**/*.py", "/p/.git", False),
    ],
)
def test_a_place_may_hold_what_a_pattern_matches(pattern: str, path: str, holds: bool) -> None:
    assert table((pattern, RO)).holds_below(path) is holds


@pytest.mark.parametrize(
    ("mounts", "path", "mode"),
    [
        # More components are more specific, whether spelled out or matched.
        ([("/p/src", RO), ("/p/src/*.py", RW)], "/p/src/a.py", RW),
        ([("/p/src", RO), ("/p/src/*.py", RW)], "/p/src/a.txt", RO),
        ([("/p/src/*.py", RW), ("/p/src/a.py", RO)], "/p/src/a.py", RO),
        ([("/p/src/*.py", RO), ("/p/src/a.py", RW)], "/p/src/a.py", RW),
        # ** counts for nothing, so a directory spelled out inside decides.
        ([("/p/src/**", RW), ("/p/src/vendor", RO)], "/p/src/vendor/a", RO),
        ([("/p/src/**", RW), ("/p/src", RO)], "/p/src/a", RO),
        ([("/p/**/*.py", RW), ("/p/src", RO)], "/p/src/a.py", RO),
        ([("/p/**/*.py", RW), ("/p", RO)], "/p/src/a.py", RW),
        # Between two patterns alike the read-only one decides, in either order.
        ([("/p/*.py", RW), ("/p/a*", RO)], "/p/a.py", RO),
        ([("/p/a*", RO), ("/p/*.py", RW)], "/p/a.py", RO),
        ([("/p/*.py", RW), ("/p/a*", RW)], "/p/a.py", RW),
        ([("/p/*/x", RW), ("/p/*", RO)], "/p/a/x/y", RW),
        ([("/p/*", RO), ("/p/*/x", RW)], "/p/a/x/y", RW),
        ([("/", RO), ("/**", RW)], "/a", RO),
    ],
)
def test_the_most_specific_of_names_and_patterns_decides(
    mounts: list[tuple[str, FsMode]], path: str, mode: FsMode
) -> None:
    assert table(*mounts).mode_at(path) is mode


_pieces = st.sampled_from(["a", "b", "*", "a*", "?", "[ab]", "**", ".a", ".*"])
_steps = st.lists(st.sampled_from(["a", "b", "ab", ".a"]), max_size=4)


def _model(pattern: list[str], steps: list[str]) -> bool:
    """Match by one regular expression over the whole path: the other way to say the same."""
    words = {
        "*": r"(?!\.)[^/]*",
        "a*": r"a[^/]*",
        "?": r"(?!\.)[^/]",
        "[ab]": r"[ab]",
        ".*": r"\.[^/]*",
    }
    text = "".join(
        r"(?:/(?!\.)[^/]+)*" if piece == "**" else "/" + words.get(piece, re.escape(piece))
        for piece in pattern
    )
    return re.fullmatch(text + r"(?:/[^/]+)*", "".join(f"/{step}" for step in steps)) is not None


@patiently
@given(st.lists(_pieces, min_size=1, max_size=4), _steps)
def test_patterns_agree_with_a_regular_expression(pattern: list[str], steps: list[str]) -> None:
    assert MountGlob("/" + "/".join(pattern)).covers(steps) is _model(pattern, steps)


@patiently
@given(st.lists(_pieces, min_size=1, max_size=3), _steps, _steps)
def test_what_can_be_matched_below_is_announced_above(
    pattern: list[str], steps: list[str], more: list[str]
) -> None:
    glob = MountGlob("/" + "/".join(pattern))
    if glob.covers(steps + more):
        assert glob.may_hold(steps)
