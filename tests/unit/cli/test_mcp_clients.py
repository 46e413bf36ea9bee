"""Files of other MCP clients: comments, placeholders, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kaged.cli.mcp_clients import plain_json
from kaged.cli.mcp_foreign import ForeignServer, Refused, parse_server
from kaged.cli.mcp_sections import own_name


def taken(**value: Any) -> ForeignServer:
    found = parse_server("s", {"command": "x", **value})
    assert isinstance(found, ForeignServer), found
    return found


def refused(value: Any) -> str:
    found = parse_server("s", value)
    assert isinstance(found, Refused), found
    return found.reason


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ('{"a": "http://x//y", // c\n "b": [1, 2,],}', {"a": "http://x//y", "b": [1, 2]}),
        ('{/* a, } */ "q": "\\"/*no*/,}"}', {"q": '"/*no*/,}'}),
        ('{"a": 1 /* 1\n2 */\n}', {"a": 1}),
        ('{"a": [], // the last,\n}', {"a": []}),
    ],
)
def test_comments_and_trailing_commas_go_and_texts_stay(text: str, means: Any) -> None:
    assert json.loads(plain_json(text)) == means


@pytest.mark.parametrize(
    "text", ['{"a": 1,, }', '{"a": "x} // y', "{/* open ", "{} /* open", "{} /*/", '{,"a": 1}']
)
def test_what_is_no_json_does_not_become_json(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(plain_json(text))


def test_a_long_broken_text_is_read_in_one_go() -> None:
    # Searched again from each piece, these would take hours.
    for piece in ("\\", '\\"', "/* ", ", ", "/", "//*"):
        plain_json('{"' + piece * 2_000_000)
        plain_json("{" + piece * 2_000_000)


@pytest.mark.parametrize(
    ("written", "env", "secrets"),
    [
        ("${A}", {"V": "${A}"}, {}),
        ("${env:A}", {"V": "${A}"}, {}),
        ("{env:A}", {"V": "${A}"}, {}),
        ("Bearer ${A}", {"V": "Bearer ${A}"}, {}),
        ("plain", {}, {"V": "plain"}),
        ("pass${A}", {}, {"V": "pass${A}"}),
        (5, {}, {"V": "5"}),
    ],
)
def test_only_references_stand_in_the_open(
    written: Any, env: dict[str, str], secrets: dict[str, str]
) -> None:
    found = taken(env={"V": written})
    assert (dict(found.env), dict(found.secrets)) == (env, secrets)


@pytest.mark.parametrize("written", ["${A:-b}", "{file:/etc/passwd}", "${A", None, True, ["x"]])
def test_a_value_that_would_mean_something_else_is_refused(written: Any) -> None:
    assert "the value of V" in refused({"command": "x", "env": {"V": written}})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"command": "x", "args": "y"}, "args is no list"),
        ({"command": ["x", 5]}, "no text"),
        ({"command": ["x", ""]}, "empty word"),
        ({"command": ["token", *["-" * 2000] * 5]}, "more than 8192 characters"),
        ({"command": "x", "env": []}, "env is no table"),
        ({"command": "x", "env": {str(one): "" for one in range(101)}}, "more than 100"),
        ({"command": "x", "args": ["--token", "abcdefgh"]}, "secret"),
        ({"url": "https://a.example/?api_key=abcdefgh"}, "secret"),
        ({"url": "https://a.example", "env_http_headers": {"X-A": "B"}}, "header X-A"),
        ({"url": "https://a.example", "bearer_token_env_var": "a b"}, "placeholder"),
    ],
)
def test_what_cannot_be_taken_over_says_why(value: Any, said: str) -> None:
    assert said in refused(value)


def test_what_has_no_place_is_noted() -> None:
    assert taken(cwd="/x", envFile=".env").notes == (
        "its working folder is left out: kaged has no such setting",
        "its file of variables is left out: kaged has no such setting",
    )
    assert not taken(disabled=True).enabled
    assert taken(env={"K": "${input:key}"}).missing == ("K",)


@pytest.mark.parametrize(
    ("original", "name"),
    [
        ("GitHub", "github"),
        ("@a/b_c", "a-b-c"),
        ("7zip", "mcp-7zip"),
        ("file", "file-mcp"),
        ("\x1b[31m", "mcp-31m"),
        ("éè", "server"),
        ("x" * 300, "x" * 50),
    ],
)
def test_a_name_becomes_one_that_config_toml_can_have(original: str, name: str) -> None:
    assert own_name(original) == name
