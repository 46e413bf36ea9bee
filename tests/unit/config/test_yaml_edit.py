from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kaged.base import JsonValue
from kaged.config import ConfigFileInvalid, EditRefused
from kaged.config.nodes import to_json
from kaged.config.yamldoc import parse_yaml
from kaged.config.yamledit import YamlEdit, render_yaml
from kaged.config.yamlspans import yaml_spans

SAMPLE = """\
# top
primary:   # p
  model: a  # keep
  plugins:
    memory:
      package: "@kaged/m"   # pk
      config:
        budget: mid # b
        tags: [ a, "b" ]   # t

        text: |
          hello
          there
    # between
    other: { package: x, config: {a: 1} }
  empty:
  list:
    - k: v
      z: 1
    - q
  anchor: &x {n: 1}
  alias: *x
# end
tail: 'x'
"""


def edited(path: tuple[str | int, ...], value: JsonValue, text: str = SAMPLE) -> str:
    edit = YamlEdit(text, "f.yaml")
    edit.set(path, value)
    return edit.text


def without(path: tuple[str | int, ...], text: str = SAMPLE) -> str:
    edit = YamlEdit(text, "f.yaml")
    edit.delete(path)
    return edit.text


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("primary", "model"), "b", "model: a  # keep", "model: b  # keep"),
        (
            ("primary", "plugins", "memory", "config", "tags"),
            ["x", "y: z"],
            '[ a, "b" ]   # t',
            '[x, "y: z"]   # t',
        ),
        (
            ("primary", "plugins", "memory", "config", "text"),
            "one\ntwo",
            "text: |\n          hello\n          there\n",
            'text: "one\\ntwo"\n',
        ),
        (("primary", "plugins", "other", "config", "a"), True, "{a: 1}", "{a: true}"),
        (("primary", "plugins", "other", "config", "b"), None, "{a: 1}", "{a: 1, b: null}"),
        (("primary", "empty"), 1, "empty:\n", "empty: 1\n"),
        (("primary", "empty", "p", "q"), 1, "empty:\n", "empty: { p: { q: 1 } }\n"),
        (("primary", "list", 0, "k"), "no", "- k: v", '- k: "no"'),
        (("primary", "list", 1), "r", "    - q\n", "    - r\n"),
        (
            ("primary", "list", 0, "new"),
            "w",
            "      z: 1\n",
            "      z: 1\n      new: w\n",
        ),
        (
            ("primary", "plugins", "memory", "hooks"),
            [],
            "          there\n",
            "          there\n      hooks: []\n",
        ),
        (("added",), {"a b": 1}, "tail: 'x'\n", "tail: 'x'\nadded: { \"a b\": 1 }\n"),
    ],
)
def test_setting_a_value_changes_only_its_own_bytes(
    path: tuple[str | int, ...], value: JsonValue, old: str, new: str
) -> None:
    assert SAMPLE.count(old) == 1
    assert edited(path, value) == SAMPLE.replace(old, new)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (("primary", "plugins", "memory", "config", "budget"), "        budget: mid # b\n", ""),
        (("primary", "plugins", "other", "package"), "{ package: x, ", "{ "),
        (("primary", "plugins", "other", "config"), "x, config: {a: 1} }", "x }"),
        (("primary", "plugins", "other", "config", "a"), "{a: 1}", "{}"),
        (("primary", "list", 0, "k"), "- k: v\n      z: 1", "- z: 1"),
        (("primary", "list", 0, "z"), "      z: 1\n", ""),
        (("primary", "empty"), "  empty:\n", ""),
        (("tail",), "tail: 'x'\n", ""),
    ],
)
def test_deleting_a_key_cuts_out_its_own_lines(
    path: tuple[str | int, ...], old: str, new: str
) -> None:
    assert SAMPLE.count(old) == 1
    assert without(path) == SAMPLE.replace(old, new)


def test_deleting_the_only_key_leaves_an_empty_map() -> None:
    assert without(("a", "b"), "a:\n  b: 1 # c\nd: 2\n") == "a: {} # c\nd: 2\n"
    assert without(("a",), "a: 1\n") == "{}\n"
    assert without(("nothing", "here")) == SAMPLE


def test_a_file_without_a_last_line_end_gets_one_before_the_new_key() -> None:
    assert edited(("b",), 2, "a: 1") == "a: 1\nb: 2\n"
    assert edited(("b",), 2, "a: 1 # c") == "a: 1 # c\nb: 2\n"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("primary", "list", 7), "x"),
        (("primary", "alias", "n"), 2),
        (("primary", "anchor"), 2),
        (("tail", "x"), 1),
        (("primary", "list", 0), "whole block item"),
        (("primary", "model"), "half \ud800"),
        ((), 1),
    ],
)
def test_what_cannot_be_done_cleanly_is_refused_and_nothing_changes(
    path: tuple[str | int, ...], value: JsonValue
) -> None:
    edit = YamlEdit(SAMPLE, "f.yaml")
    with pytest.raises(EditRefused):
        edit.set(path, value)
    assert edit.text == SAMPLE


def test_items_of_lists_and_the_document_cannot_be_deleted() -> None:
    edit = YamlEdit(SAMPLE, "f.yaml")
    for path in (("primary", "list", 1), ()):
        with pytest.raises(EditRefused):
            edit.delete(path)
    with pytest.raises(EditRefused):
        YamlEdit("- a: 1\n- b\n", "f.yaml").delete((1,))
    assert edit.text == SAMPLE


def test_values_can_be_read_back_and_a_missing_one_is_a_key_error() -> None:
    edit = YamlEdit(SAMPLE, "f.yaml")
    assert edit.get(("primary", "plugins", "other")) == {"package": "x", "config": {"a": 1}}
    for path in (("nope",), ("primary", "list", 9), ("tail", "x")):
        with pytest.raises(KeyError):
            edit.get(path)


def test_a_text_with_problems_cannot_be_opened() -> None:
    with pytest.raises(ConfigFileInvalid):
        YamlEdit("a: 1\na: 2\n", "f.yaml")


def test_several_edits_add_up() -> None:
    edit = YamlEdit("a: 1\n", "f.yaml")
    edit.set(("b", "c"), "x")
    edit.set(("b", "d"), "z")
    edit.delete(("a",))
    assert edit.text == "b: { c: x, d: z }\n"


safe_text = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | safe_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(safe_text, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_values)
def test_every_value_is_rendered_so_that_it_reads_back(value: JsonValue) -> None:
    parsed = parse_yaml(f"v: {render_yaml(value)}\n", "f.yaml")
    assert not parsed.problems
    assert parsed.node is not None
    assert to_json(parsed.node) == {"v": value}


# Neither y nor n: as whole words they are quoted for readers of YAML 1.1.
keys = st.text("abcdefxz", min_size=1, max_size=4)
comments = st.sampled_from(["", " # note", "   # a: b, [c]"])
leaves = st.sampled_from(
    [
        "1",
        "plain text",
        "'quoted'",
        '"dq: #"',
        "[a, b]",
        "{ f: 1 }",
        "null",
        "",
        "|\n{i}  block\n{i}  text",
    ]
)


@st.composite
def yaml_texts(draw: st.DrawFn, indent: int = 0, depth: int = 0) -> str:
    lines: list[str] = []
    pad = " " * indent
    for name in draw(st.lists(keys, min_size=1, max_size=4, unique=True)):
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from([f"{pad}# over {name}", ""])))
        if depth < 2 and draw(st.booleans()):
            lines.append(f"{pad}{name}:{draw(comments)}")
            lines.append(draw(yaml_texts(indent + draw(st.sampled_from([1, 2, 4])), depth + 1)))
        else:
            leaf = draw(leaves).replace("{i}", pad)
            note = "" if leaf.startswith("|") else draw(comments)
            lines.append(f"{pad}{name}: {leaf}{note}".rstrip(" "))
    return "\n".join(lines)


@settings(deadline=None)
@given(yaml_texts(), st.data(), json_values)
def test_editing_one_key_keeps_every_other_byte(
    text: str, data: st.DataObject, value: JsonValue
) -> None:
    text += "\n"
    parsed = parse_yaml(text, "f.yaml")
    assume(not parsed.problems)
    spans = yaml_spans(text)
    path = data.draw(st.sampled_from([path for path in spans if path]))
    span = spans[path]
    edit = YamlEdit(text, "f.yaml")
    edit.set(path, value)
    assert edit.get(path) == value
    # Everything up to the key's colon and everything behind the old value is still there.
    head = text[: span.key_end]
    tail = text[span.end :]
    assert edit.text.startswith(head)
    assert edit.text.endswith(tail)


@settings(deadline=None)
@given(yaml_texts(), keys, json_values)
def test_adding_a_key_keeps_every_byte_that_was_there(
    text: str, name: str, value: JsonValue
) -> None:
    text += "\n"
    parsed = parse_yaml(text, "f.yaml")
    assume(not parsed.problems and parsed.node is not None and parsed.node.child(name) is None)
    edit = YamlEdit(text, "f.yaml")
    edit.set((name,), value)
    assert edit.get((name,)) == value
    added = f"{name}: {render_yaml(value)}\n"
    places = [at for at in range(len(edit.text)) if edit.text.startswith(added, at)]
    assert any(edit.text[:at] + edit.text[at + len(added) :] == text for at in places)


def notes(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.lstrip().startswith("# over")]


@settings(deadline=None)
@given(yaml_texts(), st.data())
def test_deleting_a_key_takes_nothing_else_away(text: str, data: st.DataObject) -> None:
    text += "\n"
    parsed = parse_yaml(text, "f.yaml")
    assume(not parsed.problems)
    spans = yaml_spans(text)
    path = data.draw(
        st.sampled_from([path for path in spans if path and isinstance(path[-1], str)])
    )
    edit = YamlEdit(text, "f.yaml")
    edit.delete(path)
    with pytest.raises(KeyError):
        edit.get(path)
    if len(spans[path[:-1]].children) == 1:
        return  # The map becomes {}; a comment above its only key goes with the key.
    before = text[: spans[path].key_start] + text[spans[path].end :]
    assert notes(edit.text) == notes(before)


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a:\n  # why\n  - x # one\n  # end\nb: 1\n", ("a",), "  - x # one\n  - new\n"),
        ("a:\n- x\n- {k: 1}", ("a",), "- {k: 1}\n- new\n"),
        ("a:\n- k: 1\n  z: 2\n\nb: 1\n", ("a",), "  z: 2\n- new\n"),
        ("a: [ x, y ] # c\n", ("a",), "a: [ x, y, new ] # c\n"),
        ("a: [ x,\n  y,\n]\n", ("a",), "  y, new,\n"),
        ("a: []\n", ("a",), "a: [new]\n"),
        ("a:\nb: 1\n", ("a",), "a: [new]\n"),
        ("a:\n  n: 1\n", ("a", "l"), "  l: [new]\n"),
        ("a: 1\n", ("b", "c"), "b: { c: [new] }\n"),
    ],
)
def test_an_item_is_added_to_the_end_of_a_list(text: str, path: tuple[str, ...], line: str) -> None:
    edit = YamlEdit(text, "f.yaml")
    before = edit.get(path) if text.startswith("a:\n  #") else None
    edit.append(path, "new")
    assert line in edit.text
    assert YamlEdit(edit.text, "f.yaml").get(path)[-1] == "new"  # type: ignore[index] - a list
    if before is not None:
        kept = [one for one in text.splitlines() if one not in edit.text.splitlines()]
        assert kept == []


@pytest.mark.parametrize("text", ["a: x\n", "a: {k: 1}\n", "b: &l [x]\na: *l\n"])
def test_what_is_no_list_of_its_own_is_not_added_to(text: str) -> None:
    edit = YamlEdit(text, "f.yaml")
    with pytest.raises(EditRefused):
        edit.append(("a",), "new")
    assert edit.text == text
