"""Docstrings are in Python's voice: "Return …" and "Called when …", not "Give …" or "Hear …"."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "plugins", "tests", "scripts", "benchmarks")
REFUSED = frozenset({"Complain", "Give", "Have", "Hear", "Say", "Tell"})


def _openers() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                words = (ast.get_docstring(node) or "").split()
                if words and not node.name.startswith("test_"):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", words[0].strip(",.;:")


def test_no_docstring_starts_with_an_odd_verb() -> None:
    assert [place for place, word in _openers() if word in REFUSED] == []
