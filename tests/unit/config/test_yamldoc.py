from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.base import JsonValue
from kaged.config.nodes import to_json
from kaged.config.problems import Mark, Problem
from kaged.config.yamldoc import MAX_DEPTH, MAX_NODES, parse_yaml
from requirements import requirement


def read(text: str) -> JsonValue:
    parsed = parse_yaml(text, "f.yaml")
    assert not parsed.problems
    assert parsed.node is not None
    return to_json(parsed.node)


def refuse(text: str) -> tuple[Problem, ...]:
    parsed = parse_yaml(text, "f.yaml")
    assert parsed.problems
    assert all(problem.file == "f.yaml" for problem in parsed.problems)
    return parsed.problems


def test_yaml_1_2_words_mean_what_they_say() -> None:
    text = """
    a: yes
    b: off
    c: true
    d: FALSE
    e: ~
    f:
    g: 2026-01-01
    h: 12:30
    i: 1_000
    j: 012
    k: 0x1F
    l: 0o17
    m: -3
    n: .5
    o: 1e3
    p: "1"
    q: '~'
    r: !!str 12
    s: 1.10
    """
    assert read(text) == {
        "a": "yes",
        "b": "off",
        "c": True,
        "d": False,
        "e": None,
        "f": None,
        "g": "2026-01-01",
        "h": "12:30",
        "i": "1_000",
        "j": 12,
        "k": 31,
        "l": 15,
        "m": -3,
        "n": 0.5,
        "o": 1000.0,
        "p": "1",
        "q": "~",
        "r": "12",
        "s": 1.1,
    }


def test_keys_and_values_remember_where_they_stand() -> None:
    node = parse_yaml("# c\na:\n  b: [x, {c: 1}]\n", "f.yaml").node
    assert node is not None
    entry = node.entry("a")
    assert entry is not None
    assert entry.mark == Mark(2, 1)
    inner = entry.node.entry("b")
    assert inner is not None
    assert (inner.mark, inner.node.mark) == (Mark(3, 3), Mark(3, 6))
    assert isinstance(inner.node.value, tuple)
    assert inner.node.value[1].mark == Mark(3, 10)


def test_anchors_and_aliases_are_fine() -> None:
    assert read("a: &x {k: [1, 2]}\nb: *x\nc: *x\n") == {
        "a": {"k": [1, 2]},
        "b": {"k": [1, 2]},
        "c": {"k": [1, 2]},
    }


@requirement("AT-DSL-22")
def test_tags_construct_nothing_and_duplicate_keys_are_errors() -> None:
    (tag,) = refuse("a: !!python/object/apply:os.system ['touch /tmp/pwned']")
    assert tag.code == "tag_refused"
    assert (tag.line, tag.key_path) == (1, "a")
    for text in ("!!python/name:os.system x", "!ruby/object:X {}", "a: !<tag:x,1:y> [1]"):
        assert refuse(text)[0].code == "tag_refused"
    (double,) = refuse("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert double.code == "duplicate_key"
    assert (double.line, double.key_path) == (4, "a.b")
    assert "first in line 2" in double.message


def test_all_recoverable_problems_are_found_in_one_go() -> None:
    codes = [p.code for p in refuse("a: 1\na: 2\n<<: {b: 1}\n1: x\n? [1]\n: 2\nc: !x y\nd: .nan\n")]
    assert codes == [
        "duplicate_key",
        "merge_key",
        "key_not_text",
        "key_not_text",
        "tag_refused",
        "bad_number",
    ]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "empty_document", None),
        ("# only a comment\n", "empty_document", None),
        ("a: [1, 2", "yaml_syntax", 1),
        ("a: b: c", "yaml_syntax", 1),
        ("ok: 1\nx: @y", "yaml_syntax", 2),
        ('a: "unclosed', "yaml_syntax", 1),
        ("a:\n\t- tab", "yaml_syntax", 2),
        ("a: \x07", "yaml_syntax", 1),
        ('a: "\\UFFFFFFFF"', "yaml_syntax", None),
        ('a: "\\ud800"', "file_encoding", 1),
        ("a: 1\n---\nb: 2\n", "several_documents", 2),
        ("%YAML 1.1\n---\na: yes\n", "yaml_version", 2),
        ("a: &a [1, *a]", "cyclic_alias", 1),
        ("a: &a {b: {c: *a}}", "cyclic_alias", 1),
        ("a: *nobody", "unknown_alias", 1),
        ("a: .inf", "bad_number", 1),
        ("a: 1e999", "bad_number", 1),
        ("a: " + "9" * 5000, "bad_number", 1),
        ("a: 9223372036854775808", "bad_number", 1),
        ("a: 1\n1.5: b\n", "key_not_text", 2),
        ("a: 1\ntrue: b\n", "key_not_text", 2),
        ("a: 1\nnull: b\n", "key_not_text", 2),
        ('a: !!int "x"', "bad_number", 1),
    ],
)
def test_bad_yaml_is_a_problem_with_its_line(text: str, code: str, line: int | None) -> None:
    problem = refuse(text)[0]
    assert (problem.code, problem.line) == (code, line)


def test_a_tab_says_to_use_spaces() -> None:
    (problem,) = refuse("a:\n\t- b")
    assert "tab" in problem.message
    assert "spaces" in problem.fix


def test_a_billion_laughs_stop_at_the_node_limit() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (problem,) = refuse("\n".join(levels))
    assert problem.code == "too_many_nodes"
    assert str(MAX_NODES) in problem.message


def test_a_billion_laughs_of_keys_stop_as_well() -> None:
    levels = ["a0: &a0 {b: x, c: x, d: x, e: x, f: x}"]
    levels += [
        f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}" for n in range(1, 9)
    ]
    assert refuse("\n".join(levels))[0].code == "too_many_nodes"


@pytest.mark.parametrize("text", ["[" * 100_000, "[\n" * 100_000, "{a: " * 50_000, "- " * 50_000])
def test_endless_nesting_stops_at_the_depth_limit(text: str) -> None:
    assert refuse(text)[0].code == "too_deep"


def test_aliases_cannot_be_used_to_nest_deeper_than_the_limit() -> None:
    text = "a: &a " + "[" * 40 + "x" + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40
    assert refuse(text)[0].code == "too_deep"
    assert read("a: " + "[" * (MAX_DEPTH - 2) + "x" + "]" * (MAX_DEPTH - 2))


def test_more_plain_values_than_the_limit_are_refused() -> None:
    assert refuse("[" + "a," * (MAX_NODES + 1) + "]")[0].code == "too_many_nodes"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn", "Co"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(codec="ascii", min_codepoint=32)), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(json_values)
def test_json_is_read_as_the_same_data(value: JsonValue) -> None:
    text = json.dumps({"v": value}, ensure_ascii=False)
    if any(odd in text for odd in "\x7f\x85\u2028\u2029\ufeff\ufffe\uffff"):
        return  # YAML folds or refuses these inside quotes; JSON does not.
    assert read(text) == {"v": value}


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_makes_the_reader_raise(text: str) -> None:
    parsed = parse_yaml(text, "f.yaml")
    assert (parsed.node is not None) or parsed.problems
