from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.mcp.approvals import Approvals
from kaged.mcp.catalog import parse_tools
from kaged.mcp.content import outside_text, parse_content
from kaged.mcp.errors import McpAnswerInvalid, McpCallFailed
from kaged.mcp.texts import clean_schema, clean_text, labelled, one_line

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.text(max_size=400), st.integers(1, 100))
def test_a_clean_text_is_bounded_and_hides_nothing(text: str, limit: int) -> None:
    found = clean_text(text, limit)
    assert len(found) <= limit
    assert all(one.isprintable() or one in "\n\t" or one.isspace() for one in found)
    assert clean_text(found, limit) == found or len(text) > limit


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\U000e0041", "\x1b", "\x00", "\ue000"])
def test_what_does_not_show_is_taken_out(hidden: str) -> None:
    assert clean_text(f"a{hidden}b", 10) == "ab"
    assert hidden not in labelled("x", f"say {hidden}")


def test_one_line_is_one_line() -> None:
    assert one_line("a\n\tb\r\nc") == "a b c"


def test_what_a_schema_accepts_survives_its_cleaning() -> None:
    schema: Any = {
        "type": "object",
        "description": "x\u202e" + "y" * 1000,
        "properties": {
            "description": {"type": "string", "title": "\u200bt"},
            "examples": {"const": {"description": "a\u200bb"}},
        },
    }
    found: Any = clean_schema(schema)
    assert len(found["description"]) == 500
    assert found["properties"]["description"] == {"type": "string", "title": "t"}
    assert found["properties"]["examples"] == schema["properties"]["examples"]


@given(st.lists(JSON, max_size=6))
def test_whatever_a_server_lists_is_parsed_or_left_out(listed: list[Any]) -> None:
    tools, left_out = parse_tools("out", listed)
    assert len(tools) + len(left_out) == len(listed)


@given(JSON)
def test_whatever_a_tool_answers_is_a_result_or_an_error(answer: Any) -> None:
    try:
        found = parse_content(answer, "out", "out.t", limit_bytes=50)
    except (McpAnswerInvalid, McpCallFailed):
        return
    assert set(found) <= {"from", "text", "structured", "attachments", "truncated"}


def test_a_digest_changes_with_everything_that_was_agreed_to() -> None:
    base: dict[str, Any] = {"name": "t", "description": "d", "inputSchema": {"type": "object"}}
    changes: list[dict[str, Any]] = [
        {},
        {"description": "other"},
        {"inputSchema": {"type": "object", "required": ["a"]}},
        {"annotations": {"readOnlyHint": True}},
        {"title": "T"},
        {"outputSchema": {"type": "object"}},
    ]
    digests = {parse_tools("out", [{**base, **change}])[0][0].digest for change in changes}
    assert len(digests) == 6
    assert parse_tools("out", [{**base, "_meta": {"x": 1}}])[0][0].digest in digests


def test_attachments_are_kept_within_the_limit_and_texts_are_cut() -> None:
    answer: Any = {
        "content": [
            {"type": "text", "text": "é" * 30},
            {"type": "image", "mimeType": "image/png", "data": "x" * 30},
            {"type": "resource", "resource": {"uri": "u:1", "mimeType": "t/p", "text": "hi"}},
            {"type": "resource_link", "uri": "u:2", "name": "n"},
        ]
    }
    whole: Any = parse_content(answer, "out", "out.t", limit_bytes=1000)
    assert whole["truncated"] is False
    assert [one["type"] for one in whole["attachments"]] == ["image", "resource", "resource_link"]
    cut: Any = parse_content(answer, "out", "out.t", limit_bytes=65)
    assert cut["truncated"] is True
    assert [one["type"] for one in cut["attachments"]] == ["resource", "resource_link"]
    short = parse_content(answer, "out", "out.t", limit_bytes=11)
    assert str(short["text"]).startswith("é" * 5 + "\n[cut off")


def test_approvals_survive_and_a_faulty_file_is_no_approval(tmp_path: Any) -> None:
    listed: list[Any] = [{"name": "t", "inputSchema": {"type": "object"}}]
    tools, _ = parse_tools("out", listed)
    kept = Approvals(tmp_path / "a" / "approvals.json")
    kept.load()
    assert kept.compare("out", tools).first
    kept.agree("out", tools)
    again = Approvals(tmp_path / "a" / "approvals.json")
    again.load()
    assert again.compare("out", tools).same
    assert again.compare("out", []).removed == ("t",)
    assert (tmp_path / "a" / "approvals.json").stat().st_mode & 0o777 == 0o600
    for text in ("[]", '{"format": 9}', json.dumps({"format": 1, "servers": {"out": []}})):
        (tmp_path / "a" / "approvals.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="holds no approvals"):
            Approvals(tmp_path / "a" / "approvals.json").load()


def test_a_model_is_shown_no_base64_and_nothing_twice() -> None:
    """The result itself keeps both."""
    value = {"rows": [1, 2], "name": "x"}
    answer: dict[str, Any] = {
        "content": [
            {"type": "text", "text": json.dumps(value)},
            {"type": "image", "data": "QUJD" * 5000, "mimeType": "image/png"},
        ],
        "structuredContent": value,
    }
    found = parse_content(answer, "s", "t", limit_bytes=100_000)
    shown = outside_text(found)
    assert "QUJD" not in shown
    assert "type: image, mime_type: image/png, size: 20000" in shown
    assert shown.count("rows") == 1
    assert found["structured"] == value
    assert found["attachments"] != []
    other = parse_content({**answer, "structuredContent": {"rows": []}}, "s", "t", limit_bytes=9999)
    assert outside_text(other).count("rows") == 2
