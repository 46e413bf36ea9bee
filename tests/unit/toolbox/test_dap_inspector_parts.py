"""The parts of the inspectors' translation: values, breakpoints, source maps."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import JsonObject
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.inspector_breakpoints import InspectorBreakpoints, condition_of
from kaged.toolbox.dap.inspector_scripts import SourceMap
from kaged.toolbox.dap.inspector_values import (
    MAX_NAMES,
    TEXT_CHARS,
    Handles,
    declared_names,
    describe,
    members,
    text_of,
    type_of,
)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remote", "text", "kind"),
    [
        ({"type": "undefined"}, "undefined", "undefined"),
        ({"type": "object", "subtype": "null", "value": None}, "null", "null"),
        ({"type": "string", "value": 'a "b"\n'}, '"a \\"b\\"\\n"', "string"),
        ({"type": "boolean", "value": False}, "false", "boolean"),
        ({"type": "number", "value": 4, "description": "4"}, "4", "number"),
        ({"type": "number", "unserializableValue": "-0"}, "-0", "number"),
        ({"type": "bigint", "unserializableValue": "9n"}, "9n", "bigint"),
        ({"type": "symbol", "description": "Symbol(x)"}, "Symbol(x)", "symbol"),
        ({"type": "object", "className": "Map", "description": "Map(1)"}, "Map(1)", "Map"),
        ({"type": "function", "description": "x => x"}, "x => x", "function"),
    ],
)
def test_values_are_written_as_a_person_knows_them(
    remote: JsonObject, text: str, kind: str
) -> None:
    assert (text_of(remote), type_of(remote)) == (text, kind)


def test_a_preview_shows_the_first_members_of_an_object_or_a_list() -> None:
    some: list[Any] = [
        {"name": "a", "type": "number", "value": "1"},
        {"name": "b", "type": "string", "value": "x"},
        {"name": "c", "type": "object"},
    ]
    plain: dict[str, Any] = {
        "type": "object",
        "description": "Object",
        "preview": {"properties": some},
    }
    assert text_of(plain) == '{a: 1, b: "x", c: object}'
    named: dict[str, Any] = {
        **plain,
        "description": "User",
        "preview": {"properties": some, "overflow": True},
    }
    assert text_of(named) == 'User {a: 1, b: "x", c: object, …}'
    listed: dict[str, Any] = {**plain, "subtype": "array", "description": "Array(3)"}
    assert text_of(listed) == 'Array(3) [1, "x", object]'
    many: list[Any] = [{"name": str(n), "type": "number", "value": str(n)} for n in range(100)]
    assert text_of({**listed, "preview": {"properties": many}}).endswith("19, …]")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_whatever_an_engine_says_becomes_a_text_of_bounded_size(value: Any) -> None:
    for kind in ("string", "number", "object", "function", "strange"):
        remote: JsonObject = {"type": kind, "value": value, "description": value}
        assert len(text_of(remote)) <= TEXT_CHARS
        assert isinstance(type_of(remote), str)


def test_only_structured_values_get_a_number_and_a_proxy_is_whole() -> None:
    handles = Handles()
    plain = describe("n", {"type": "number", "value": 1, "description": "1"}, handles)
    assert plain["variablesReference"] == 0
    text = describe("s", {"type": "string", "value": "x", "objectId": "o1"}, handles)
    assert text["variablesReference"] == 0
    shown = describe("o", {"type": "object", "objectId": "o2"}, handles)
    assert handles.find(shown["variablesReference"]).object_id == "o2"
    proxy = describe("p", {"type": "object", "subtype": "proxy", "objectId": "o3"}, handles)
    assert handles.find(proxy["variablesReference"]).whole is True
    handles.clear()
    with pytest.raises(DapRequestFailed, match="no value"):
        handles.find(shown["variablesReference"])
    again = describe("o", {"type": "object", "objectId": "o2"}, handles)
    assert again["variablesReference"] not in (
        shown["variablesReference"],
        proxy["variablesReference"],
    )


def test_getters_are_named_and_not_called() -> None:
    listed: list[Any] = [
        {"name": "a", "value": {"type": "number", "value": 1, "description": "1"}},
        {"name": "g", "get": {"type": "function"}},
        {"name": "nothing"},
        {"value": {"type": "number"}},
        5,
    ]
    found: list[Any] = members(listed, Handles())
    assert [(one["name"], one["value"]) for one in found] == [("a", "1"), ("g", "(getter)")]
    assert members("nonsense", Handles()) == []


def test_names_that_a_module_declares() -> None:
    source = (
        'import { a, b as c } from "./x";\n'
        "const one = 1, two = other;\nlet { three, four: five } = thing;\n"
        "export async function six(inner) {\n  const hidden = 1;\n}\n"
        "class Seven extends Base {}\nfunction* eight() {}\n"
    )
    found = declared_names(source)
    wanted = {"a", "c", "one", "two", "three", "five", "six", "Seven", "eight"}
    assert wanted <= set(found)
    assert not {"hidden", "inner", "const", "from", "Base"} & set(found)
    assert len(declared_names("".join(f"let v{n} = 1;\n" for n in range(1000)))) == MAX_NAMES


# -- breakpoints -------------------------------------------------------------------------------


def test_a_condition_counts_hits_and_writes_logs() -> None:
    assert condition_of({"line": 1}, 7) == ""
    assert condition_of({"condition": "x > 1 // why"}, 7) == "(x > 1 // why\n)"
    counted = condition_of({"condition": "x", "hitCondition": "3"}, 7)
    assert counted.startswith("(x\n) && ((h) => (h[7] = (h[7] ?? 0) + 1) === 3)")
    assert condition_of({"hitCondition": "> 3"}, 7) == ""  # only a count is known
    assert condition_of({"logMessage": "x is {x} of 100%"}, 7) == (
        '(console.log("x is %s of 100%%", (x\n)), false)'
    )
    assert condition_of({"logMessage": "100% {} sure"}, 7) == (
        '(console.log("100% {} sure"), false)'
    )


@given(st.text())
def test_a_log_message_never_ends_its_own_quotes(message: str) -> None:
    written = condition_of({"logMessage": message.replace("{", "")}, 1)
    assert written.startswith("(console.log(")
    text = json.loads(written.removeprefix("(console.log(").removesuffix("), false)"))
    assert text == message.replace("{", "").replace("\0", "")


def test_breakpoints_that_stay_keep_their_number_and_the_engines_name() -> None:
    known = InspectorBreakpoints()
    asked: list[Any] = [{"line": 3}, {"line": 5, "condition": "x"}, {"condition": "no line"}]
    now, new, old = known.change("/a.js", asked)
    assert [one.number for one in now] == [1, 2]
    assert (new, old) == (now, [])
    now[0].engine_id, now[0].actual = "e1", 4
    assert known.by_engine("e1") is now[0]
    assert known.by_engine(None) is None
    assert now[0].as_json() == {
        "id": 1,
        "verified": True,
        "line": 4,
        "source": {"path": "/a.js"},
    }
    later, new, old = known.change("/a.js", [{"line": 3}, {"line": 5, "condition": "y"}])
    assert [one.number for one in later] == [1, 3]
    assert later[0] is now[0]
    assert [one.number for one in new] == [3]
    assert [one.number for one in old] == [2]
    now[1].refusal = "no code"
    assert now[1].as_json()["message"] == "no code"
    assert known.change("/a.js", None) == ([], [], later)


# -- source maps -------------------------------------------------------------------------------


def encoded(number: int) -> str:
    value, written = (abs(number) << 1) | (number < 0), ""
    while True:
        digit, value = value & 31, value >> 5
        written += LETTERS[digit | (32 if value else 0)]
        if not value:
            return written


PLACES = st.lists(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 300), st.integers(0, 200)), max_size=6),
    min_size=1,
    max_size=20,
)


@given(PLACES)
def test_every_place_of_a_map_leads_back_to_where_it_was_written(
    places: list[list[tuple[int, int, int]]],
) -> None:
    rows: list[str] = []
    line = column = 0
    for row in places:
        at, parts = 0, []
        for running, source_line, source_column in sorted(row):
            fields = (running - at, 0, source_line - line, source_column - column)
            parts.append("".join(map(encoded, fields)))
            at, line, column = running, source_line, source_column
        rows.append(",".join(parts))
    found = SourceMap.of_mappings(";".join(rows))
    assert found is not None
    for number, row in enumerate(places):
        ordered = sorted(row)
        for index, (running, source_line, source_column) in enumerate(ordered):
            if index + 1 == len(ordered) or ordered[index + 1][0] > running:
                assert found.written(number, running) == (source_line, source_column)
        if not row:
            assert found.written(number, 3) == (number, 3)
    with_code = {one for row in places for _, one, _ in row}
    for asked in range(0, 301, 25):
        at = found.running(asked)
        following = [one for one in with_code if one >= asked]
        assert (at is None) is (not following)
        if at is not None:
            lines = {one for running, one, _ in places[at[0]] if running == at[1]}
            assert min(following) in lines


@given(st.text())
def test_damaged_maps_are_no_maps(text: str) -> None:
    SourceMap.of_mappings(text)
    assert SourceMap.of_url(text) is None
    SourceMap.of_url("data:application/json;base64," + text)
    SourceMap.of_url("data:application/json," + text)


def test_a_map_of_several_sources_is_not_used() -> None:
    def url(found: Any) -> str:
        data = base64.b64encode(json.dumps(found).encode()).decode()
        return "data:application/json;base64," + data

    assert SourceMap.of_url(url({"sources": ["a"], "mappings": "AAAA"})) is not None
    assert SourceMap.of_url(url({"sources": ["a", "b"], "mappings": "AAAA"})) is None
    assert SourceMap.of_url(url({"sources": ["a"]})) is None
    assert SourceMap.of_url(url([])) is None
    assert SourceMap.of_mappings("A" + "g" * 100) is None  # wider than any number
