from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import JsonObject
from kaged.tools import InvalidToolParams
from kaged.tools.schema import MAX_PROBLEMS, ParamSchema, schema_hash

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "default": 2000},
        "mode": {"enum": ["a", "b"], "default": "a"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "kind": {"type": "string", "default": "step"},
                },
                "required": ["n"],
            },
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}


def problems(params: Any) -> dict[str, str]:
    with pytest.raises(InvalidToolParams) as refusal:
        ParamSchema(SCHEMA).parse(params)
    detail = refusal.value.detail
    assert isinstance(detail, dict)
    listed: Any = detail["fields"]
    return {one["field"]: one["problem"] for one in listed}


def test_defaults_are_filled_in_at_every_depth_without_touching_what_was_sent() -> None:
    sent: JsonObject = {"path": "a", "items": [{"n": 1}, {"n": 2, "kind": "criterion"}]}
    parsed = ParamSchema(SCHEMA).parse(sent)
    assert parsed == {
        "path": "a",
        "limit": 2000,
        "mode": "a",
        "tags": [],
        "items": [{"n": 1, "kind": "step"}, {"n": 2, "kind": "criterion"}],
    }
    assert sent == {"path": "a", "items": [{"n": 1}, {"n": 2, "kind": "criterion"}]}
    tags = parsed["tags"]
    assert isinstance(tags, list)
    tags.append("mine")
    assert ParamSchema(SCHEMA).parse(sent)["tags"] == []


def test_every_mistake_is_named_with_its_field() -> None:
    found = problems({"limt": 1, "limit": "5", "mode": "c", "items": [{"n": 1}, {"kind": 7}]})
    assert found["path"] == "is required"
    assert found["limt"].endswith("did you mean limit?")
    assert found["limit"] == "must be integer, not string"
    assert found["mode"] == "must be one of a, b"
    assert found["items[1].n"] == "is required"
    assert found["items[1].kind"] == "must be string, not number"
    assert "shorter" in problems({"path": ""})["path"]


@pytest.mark.parametrize("value", [True, False, "5", None, 1.5, [], {}])
def test_nothing_is_coerced_into_an_integer(value: Any) -> None:
    assert list(problems({"path": "a", "limit": value})) == ["limit"]


def test_an_integer_written_with_a_point_is_an_integer() -> None:
    parsed = ParamSchema(SCHEMA).parse({"path": "a", "limit": 5.0, "items": [{"n": 2.0}]})
    assert type(parsed["limit"]) is int
    assert parsed["items"] == [{"n": 2, "kind": "step"}]
    items: Any = parsed["items"]
    assert type(items[0]["n"]) is int


def test_values_are_never_repeated_and_floods_are_cut() -> None:
    secret = "hunter2-" * 40
    assert all(secret[:8] not in text for text in problems({"path": [secret]}).values())
    flood = problems({"path": "a", **{f"k{n}": n for n in range(5000)}})
    assert len(flood) == MAX_PROBLEMS + 1


@pytest.mark.parametrize("params", [{"path": b"x"}, {1: 2}, {"path": object()}])
def test_what_is_no_json_is_refused_in_the_same_way(params: Any) -> None:
    with pytest.raises(InvalidToolParams):
        ParamSchema(SCHEMA).parse(params)


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert schema_hash({"a": 1, "b": {"c": 2, "d": 3}}) == schema_hash(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )


@given(
    st.dictionaries(
        st.sampled_from(["path", "limit", "mode", "tags", "items", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["n", "kind"]), inner, max_size=2)
            ),
            max_leaves=5,
        ),
    )
)
def test_what_passes_is_valid_again_and_keeps_what_was_sent(params: Any) -> None:
    schema = ParamSchema(SCHEMA)
    try:
        parsed = schema.parse(params)
    except InvalidToolParams:
        return
    assert schema.parse(parsed) == parsed
    assert {name: parsed[name] for name in params if name != "items"} == {
        name: value for name, value in params.items() if name != "items"
    }
