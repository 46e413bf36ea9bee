from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.config.nodes import Node, Odd, to_json
from kaged.config.problems import Mark, format_key_path
from kaged.config.tomldoc import parse_toml
from kaged.config.tomlkeys import locate_keys

SAMPLE = '''\
# comment with [brackets] = "and more"
a.b = 1
"x.y" = { k = [1, 2,
  { z = """
hello""""" } ], l = 'x' }
[t . "u v"]
v = 2026-01-01 00:00:00  # d
'lit.eral' = "a \\" # = ["
[[arr]]
n = 1
[arr.sub]
q = 'C:\\dir'
[[arr]]
[[arr.deep]]
n = '[not]'
[[arr.deep]]
  n.m = """a
"b" \\""" c""" # end
'''


def test_every_key_table_and_item_is_found_where_it_stands() -> None:
    tomllib.loads(SAMPLE)
    marks = {
        format_key_path(path): (mark.line, mark.column)
        for path, mark in locate_keys(SAMPLE).items()
    }
    assert marks == {
        "a": (2, 1),
        "a.b": (2, 3),
        '"x.y"': (3, 1),
        '"x.y".k': (3, 11),
        '"x.y".k[0]': (3, 16),
        '"x.y".k[1]': (3, 19),
        '"x.y".k[2]': (4, 3),
        '"x.y".k[2].z': (4, 5),
        '"x.y".l': (5, 17),
        "t": (6, 2),
        't."u v"': (6, 6),
        't."u v".v': (7, 1),
        't."u v"."lit.eral"': (8, 1),
        "arr": (9, 3),
        "arr[0]": (9, 3),
        "arr[0].n": (10, 1),
        "arr[0].sub": (11, 6),
        "arr[0].sub.q": (12, 1),
        "arr[1]": (13, 3),
        "arr[1].deep": (14, 7),
        "arr[1].deep[0]": (14, 7),
        "arr[1].deep[0].n": (15, 1),
        "arr[1].deep[1]": (16, 7),
        "arr[1].deep[1].n": (17, 3),
        "arr[1].deep[1].n.m": (17, 5),
    }


def test_a_quoted_key_with_escapes_is_found_under_its_real_name() -> None:
    assert ("tab\there",) in locate_keys('"tab\\there" = 1')


def test_dates_are_kept_apart_from_data_that_json_has() -> None:
    node = parse_toml("d = 2026-01-01\nt = 10:00:00\n", "f.toml").node
    assert node is not None
    values = (
        [entry.node.value for entry in node.value.values()]
        if isinstance(node.value, Mapping)
        else []
    )
    assert all(isinstance(value, Odd) for value in values)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a = ", "toml_syntax", 1),
        ("a = 1\nb 2\n", "toml_syntax", 2),
        ("a=1\na=2", "toml_syntax", 2),
        ("[a]\n[a]", "toml_syntax", 2),
        ("a = [1,\n2", "toml_syntax", 2),
        ('a = "\x07"', "toml_syntax", 1),
        ("a = nan", "bad_number", 1),
        ("\na = [inf]", "bad_number", 2),
        ("a = 9223372036854775808", "bad_number", 1),
        ("a = " + "9" * 5000, "bad_number", None),
        ("a = " + "[" * 5000, "too_deep", None),
        ("a = " + "[" * 100 + "]" * 100, "too_deep", None),
    ],
)
def test_bad_toml_is_a_problem_with_its_line(text: str, code: str, line: int | None) -> None:
    problem = parse_toml(text, "f.toml").problems[0]
    assert (problem.file, problem.code, problem.line) == ("f.toml", code, line)


def test_a_key_written_twice_says_what_to_do() -> None:
    (problem,) = parse_toml("a = 1\na = 2\n", "f.toml").problems
    assert "once" in problem.fix


names = st.text("abcdefgh-_0123", min_size=1, max_size=5)
odd_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=0, max_size=5)
scalars = (
    st.booleans().map(lambda value: str(value).lower())
    | st.integers(-1000, 1000).map(str)
    | st.text("ab#=[]{},.' ", max_size=6).map(lambda text: f'"{text}"')
    | st.text('ab#=[]{},." ', max_size=6).map(lambda text: f"'{text}'")
    | st.text("ab#=[]{},'\" \n", max_size=8).map(
        lambda text: '"""\n' + text.rstrip('"').replace('"""', '""') + ' """'
    )
    | st.lists(st.integers(0, 9), max_size=3).map(
        lambda items: "[ # c\n" + ",\n ".join(map(str, items)) + "]"
    )
    | st.lists(st.integers(0, 9), max_size=3).map(
        lambda items: "{ " + ", ".join(f"k{n} = {n}" for n in dict.fromkeys(items)) + " }"
    )
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    """Make a TOML text together with the line of each `[table].key`, counted while writing."""
    lines: list[str] = []
    places: dict[str, int] = {}
    tables = draw(st.lists(odd_names, max_size=4, unique=True))
    for table in tables:
        quoted = '"' + table.replace("\\", "\\\\").replace('"', '\\"') + '"'
        lines += draw(st.sampled_from([[], [""], ["# [c] = 1"]]))
        lines.append(f"[{quoted}]  # table")
        for key in draw(st.lists(names, max_size=4, unique=True)):
            places[format_key_path((table, key))] = sum(x.count("\n") + 1 for x in lines) + 1
            lines.append(f"  {key} = {draw(scalars)} # c = 2")
    return "\n".join(lines) + "\n", places


@settings(deadline=None)
@given(documents())
def test_lines_are_right_for_generated_documents(sample: tuple[str, dict[str, int]]) -> None:
    text, places = sample
    parsed = parse_toml(text, "f.toml")
    assert not parsed.problems
    assert parsed.node is not None
    assert to_json(parsed.node) == tomllib.loads(text)
    marks = {format_key_path(path): mark.line for path, mark in locate_keys(text).items()}
    assert {key: marks[key] for key in places} == places


def test_an_empty_text_is_an_empty_table() -> None:
    assert parse_toml("", "f.toml").node == Node({}, Mark(1, 1))
