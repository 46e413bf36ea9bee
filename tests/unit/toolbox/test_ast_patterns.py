from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.ast import LANGUAGES, worker_main
from kaged.toolbox.ast.languages import is_of, language_of, languages_of, names_of
from kaged.toolbox.ast.plan import Edit, apply_edits

SOURCES = sorted((Path(worker_main.__file__).parents[3] / "kaged").rglob("*.py"))[:60]


def checked(pattern: str, lang: str = "python", strictness: str = "smart") -> dict[str, Any]:
    job = worker_main.Job(lang, [pattern], strictness)
    return worker_main.check_pattern(job, 0, strictness)


@pytest.mark.parametrize(
    ("pattern", "single", "multi"),
    [
        ("f($A, $B)", ["A", "B"], []),
        ("f($A, $$$REST)", ["A"], ["REST"]),
        ("f($_, $_X, $$$)", [], []),
        ("$A == $A", ["A"], []),
        ("f($A1_B)", ["A1_B"], []),
    ],
)
def test_the_variables_of_a_pattern_are_known(
    pattern: str, single: list[str], multi: list[str]
) -> None:
    facts = checked(pattern)
    assert (facts["single"], facts["multi"]) == (single, multi)


@pytest.mark.parametrize(
    "pattern",
    [
        "isinstance($X, $Y)",
        "raise $E from None",
        "def $F($$$A): $$$B",
        "class $C($$$B): $$$X",
        "return $X",
        "self.$A = $B",
        "$X.append($Y)",
        "async with $X: $$$B",
        "lambda: $X",
        "$A if $B else $C",
        "not $X",
        "yield $X",
        "f'{$X}'",
        "import os",
        "from __future__ import annotations",
        "for $A in $B: $$$C",
        "$A is None",
        "assert $X",
    ],
)
@pytest.mark.parametrize("strictness", ["smart", "cst", "ast", "relaxed"])
def test_every_match_contains_the_text_that_is_looked_for_first(
    pattern: str, strictness: str
) -> None:
    facts = checked(pattern, strictness=strictness)
    literal = facts["literal"]
    job = worker_main.Job("python", [pattern], strictness)
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        for node in worker_main.parse(source, "python").find_all(job.rules[0]):
            assert literal is None or literal in node.text()


def test_a_search_by_shape_alone_has_no_text_to_look_for() -> None:
    assert checked("print($X)", strictness="signature")["literal"] is None
    assert checked("$A == $B")["literal"] is None
    assert checked("print($X)")["literal"] == "print"


@pytest.mark.parametrize("pattern", ["", "f(", "$$$", "f($$X)", "a\nb", "def f("])
def test_broken_patterns_say_what_is_wrong(pattern: str) -> None:
    assert checked(pattern)["error"]


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        pattern.encode()
    except UnicodeEncodeError:
        return
    facts = checked(pattern)
    assert ("error" in facts) != ("literal" in facts)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.text(max_size=4)), max_size=5),
)
def test_edits_replace_their_bytes_and_nothing_else(raw: list[tuple[int, int, str]]) -> None:
    parts: list[str] = []
    edits: list[Edit] = []
    expected: list[str] = []
    offset = 0
    for gap, size, after in raw:
        before = "é" * gap
        old = "x" * size
        parts += (before, old)
        offset += len(before.encode())
        edits.append(Edit(offset, offset + size, 1, 1, 1, 1, old, after))
        offset += size
        expected += (before, after)
    assert apply_edits("".join(parts).encode(), tuple(edits)) == "".join(expected).encode()


def test_templates_keep_what_they_do_not_bind() -> None:
    values = {"A": "1", "REST": "x, y"}
    assert worker_main.substitute("g($A, [$$$REST], $5, $b)", values) == "g(1, [x, y], $5, $b)"
    assert worker_main.substitute("$A$A", {"A": "$B"}) == "$B$B"


def test_offsets_are_counted_in_bytes_in_any_order() -> None:
    text = worker_main.ParsedSource("\ufeffaé😀b".encode())
    assert [text.byte_at(index) for index in (0, 1, 2, 3, 4)] == [3, 4, 6, 10, 11]
    assert text.byte_at(1) == 4


def test_files_are_told_by_their_names() -> None:
    assert language_of("./a/b.ts") == "typescript"
    assert language_of("./a/.ts") is None
    assert language_of("./README.md") is None
    assert is_of("./x.h", "c")
    assert is_of("./x.h", "cpp")
    assert languages_of(["a.h", "b.cpp"]) == {"cpp": 2}
    assert languages_of(["a.h", "b.c", "c.cpp"]) == {"c": 2, "cpp": 1}
    assert languages_of(["a.h"]) == {"c": 1}
    for lang in LANGUAGES:
        assert all(name.startswith("*.") for name in names_of(lang))


@pytest.mark.parametrize(
    ("source", "lang"),
    [
        ("def f(:\n", "python"),
        ("const = ;", "javascript"),
        ("if (x) { a()", "javascript"),
        ("fn f( {", "rust"),
        ('{"a": }', "json"),
    ],
)
def test_syntax_errors_are_seen_where_they_are(source: str, lang: str) -> None:
    assert worker_main.broken_at(worker_main.parse(source, lang)) is not None


def test_our_own_sources_have_none() -> None:
    for path in SOURCES:
        root = worker_main.parse(path.read_text(encoding="utf-8"), "python")
        assert worker_main.broken_at(root) is None
