"""How an MCP server is described, and what its cage gets."""

from __future__ import annotations

from typing import Any

import pytest

from kaged.cage import CageKind
from kaged.kernel.policy import FsMode
from kaged.mcp.table import cage_request, parse_table
from raising import raises_code


def test_a_server_gets_what_is_written_down_and_nothing_else() -> None:
    request = cage_request("p", parse_table({"cmd": ["/usr/bin/server", "--stdio"]}))
    assert request.command == ("/usr/bin/server", "--stdio")
    assert request.kind is CageKind.SERVER
    assert (request.policy.fs, request.policy.net, request.policy.env) == ((), (), ())
    request = cage_request(
        "p",
        parse_table(
            {
                "proto": "stdio",
                "script": "/opt/s.py",
                "cwd": "/opt",
                "env": {"A": "b"},
                "cage": {
                    "read": ["/opt/lib"],
                    "write": ["/opt/data"],
                    "net": ["api.example.com:443"],
                    "memory_mb": 128,
                },
            }
        ),
    )
    assert request.command == ("python3", "/opt/s.py")
    assert [(grant.path, grant.mode) for grant in request.policy.fs] == [
        ("/opt/lib", FsMode.RO),
        ("/opt/s.py", FsMode.RO),
        ("/opt/data", FsMode.RW),
    ]
    assert len(request.policy.net) == 1
    assert request.policy.env == (("A", "b"),)
    assert request.policy.limits.memory_mb == 128


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({}, "either cmd or script"),
        ({"cmd": ["a"], "script": "b"}, "either cmd or script"),
        ({"cmd": []}, "cmd"),
        ({"cmd": "server --stdio"}, "cmd"),
        ({"proto": "STREAMABLEHTTP", "url": "https://x"}, "STREAMABLEHTTP"),
        ({"cmd": ["a"], "url": "https://x"}, "url"),
        ({"cmd": ["a"], "cage": {"root": True}}, "cage.root"),
        ({"cmd": ["a"], "cage": {"memory_mb": 1}}, "memory_mb"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(table: dict[str, Any], word: str) -> None:
    with raises_code("mcp_server_invalid", match=word) as caught:
        parse_table(table)
    assert caught.value.fix


def test_a_grant_that_makes_no_sense_is_refused() -> None:
    with raises_code("mcp_server_invalid", match="cage"):
        cage_request("p", parse_table({"cmd": ["a"], "cage": {"net": ["no target at all!"]}}))
