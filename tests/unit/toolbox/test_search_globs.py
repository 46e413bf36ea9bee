from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.toolbox.search.globs import climbs, compile_glob
from kaged.tools import ToolError
from raising import raises_code
from thorough import examples


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.ts", "a.ts", True),
        ("*.ts", "x/y/a.ts", True),
        ("*.ts", "a.tsx", False),
        ("a/*.ts", "a/b.ts", True),
        ("a/*.ts", "a/b/c.ts", False),
        ("a/**/c.ts", "a/c.ts", True),
        ("a/**/c.ts", "a/x/y/c.ts", True),
        ("**", "a/b", True),
        ("a/**", "a/b/c", True),
        ("a/**", "b/a/c", False),
        ("**/a/**/b", "x/a/y/z/b", True),
        ("**/a/**/b", "x/a/y/z/c", False),
        ("**/a/b/**/c", "a/a/b/c", True),
        ("**/**/x", "x", True),
        ("a**b", "aXXb", True),
        ("a**b", "a/b", False),
        ("{a,b}.ts", "b.ts", True),
        ("{a,{b,c}}.ts", "c.ts", True),
        ("{a/b,c}/d", "a/b/d", True),
        ("[!a].ts", "b.ts", True),
        ("[^a].ts", "a.ts", False),
        ("[a-c]x", "bx", True),
        ("[]]x", "]x", True),
        ("[id].tsx", "[id].tsx", True),
        ("[id].tsx", "i.tsx", True),
        ("?.ts", "ab.ts", False),
        ("a?c", "a/c", False),
        ("[!x]", "/", False),
        ("\\*.ts", "*.ts", True),
        ("\\*.ts", "a.ts", False),
        ("*.T+(x)", "y.T+(x)", True),
        ("new*", "new\nline", True),
        ("!*.ts", "a.ts", False),
        ("!*.ts", "a.js", True),
        ("*a*a*b", "aXab", True),
    ],
)
def test_a_pattern_means_what_agents_expect(pattern: str, path: str, fits: bool) -> None:
    assert compile_glob(pattern).matches(path) is fits


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**/*", ".env", False),
        ("**/*", ".git/x", False),
        ("**/*", "a/.b/c", False),
        ("**/.env", "a/.env", True),
        (".github/**/*.yml", ".github/w/a.yml", True),
        ("?env", ".env", False),
        ("[.]env", ".env", False),
        ("*", "a", True),
    ],
)
def test_hidden_names_must_be_written(pattern: str, path: str, fits: bool) -> None:
    glob = compile_glob(pattern, hidden=False)
    assert glob.matches(path) is fits
    assert glob.dotted is pattern.startswith((".", "**/."))


@pytest.mark.parametrize(
    "pattern", ["", "!", "[", "a[", "{a", "{a,{b}", "[z-a]", "x" * 5_000, "{a,b}" * 9, "a\0b"]
)
def test_a_pattern_that_cannot_be_read_is_refused(pattern: str) -> None:
    with raises_code("invalid_pattern", ToolError):
        compile_glob(pattern)


@pytest.mark.parametrize("pattern", ["../a", "a/..", "/a", "{a,..}/b", "!../x", "~/a", "a/{../b}"])
def test_climbing_patterns_are_seen(pattern: str) -> None:
    assert climbs(pattern)
    assert not climbs(pattern.replace("..", "...").replace("/a", "b/a").replace("~", "x"))


def test_depth_and_names_are_told_to_the_walker() -> None:
    assert compile_glob("a/b/*.py").depth == 3
    assert compile_glob("a/**/*.py").depth is None
    assert compile_glob("*.{ts,tsx}").names == ("*.ts", "*.tsx")
    assert compile_glob("*.{ts,tsx}").by_name
    assert not compile_glob("src/*.ts").by_name
    assert compile_glob("include:py").names == ()
    assert compile_glob("**").names == ()


@pytest.mark.parametrize(
    "pattern", ["*a" * 60 + "b", "**/" + "*a*" * 40, "**/a/" * 60 + "b", "{a,aa}" * 7 + "*" * 40]
)
def test_hostile_patterns_end_quickly(pattern: str) -> None:
    glob = compile_glob(pattern)
    assert not glob.matches("a" * 250 + "/" + "a/" * 500 + "c")


@given(
    pattern=st.text(alphabet="ab*?.[]!-", min_size=1, max_size=8),
    name=st.text(alphabet="ab.-[]!", min_size=1, max_size=8),
)
@settings(max_examples=examples(50))
def test_single_names_agree_with_the_standard_library(pattern: str, name: str) -> None:
    if pattern.startswith("!") or pattern in {".", "**"} or "[" in pattern or name == ".":
        return
    assert compile_glob(pattern).matches(name) is fnmatch.fnmatchcase(name, pattern)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=examples(50))
def test_any_text_is_a_pattern_or_refused(pattern: str, name: str) -> None:
    try:
        glob = compile_glob(pattern)
    except ToolError as error:
        if error.code == "invalid_pattern":
            return
        raise
    assert isinstance(glob.matches(name), bool)
    assert isinstance(glob.regex, re.Pattern)
