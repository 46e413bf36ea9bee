"""Requests of tests over a network say how long they wait.

The library's own five seconds are too few on a busy machine, where a test then fails for nothing.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SENDS = frozenset(
    {"AsyncClient", "Client", "delete", "get", "head", "options", "patch", "post", "put", "request"}
)
SAYS_SO = frozenset({"timeout", "transport", None})
"""A transport of its own is mostly none at all; `**options` are not looked into."""


def hasty(source: str) -> list[str]:
    """Return the requests and clients in some code that keep the library's timeout."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "httpx"
        and node.func.attr in SENDS
        and not any(one.arg in SAYS_SO for one in node.keywords)
    ]


def test_every_request_says_how_long_it_waits() -> None:
    found = {
        str(path.relative_to(TESTS)): hasty(text)
        for path in TESTS.rglob("*.py")
        if "httpx." in (text := path.read_text(encoding="utf-8"))
    }
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_a_request_that_says_nothing_is_found() -> None:
    assert hasty("httpx.get(url)\nhttpx.AsyncClient(base_url=url)") == [
        "httpx.get(url)",
        "httpx.AsyncClient(base_url=url)",
    ]
    assert hasty("httpx.get(url, timeout=60)\nclient.get(url)\nhttpx.Client(**options)") == []
