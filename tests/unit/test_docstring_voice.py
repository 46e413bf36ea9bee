"""Docstrings are in Python's voice: "Return …" and "Called when …", not "Give …" or "Hear …"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "plugins", "tests", "scripts", "benchmarks")
REFUSED = frozenset({"Complain", "Give", "Have", "Hear", "Say", "Tell"})
# Texts that begin so; parsing every file for its docstrings takes twenty times as long.
BEGINS = re.compile(rf"[\"'\\]\s*(?:{'|'.join(sorted(REFUSED))})\b")


def _openers(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)) if BEGINS.search(text) else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words and not node.name.startswith("test_"):
                yield node.lineno, words[0].strip(",.;:")


def refused(text: str) -> list[int]:
    """Return the lines of functions whose docstring starts with an odd verb."""
    return [line for line, word in _openers(text) if word in REFUSED]


def test_no_docstring_starts_with_an_odd_verb() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in paths
        if (lines := refused(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_an_odd_verb_is_found_wherever_a_docstring_begins() -> None:
    for quoted in (
        '"""Give it."""',
        "'Give it.'",
        '"""\n    Give: it.\n    """',
        'r"""Give, it."""',
    ):
        assert refused(f"def f():\n    {quoted}\n") == [1], quoted
        assert refused(f"class C:\n  async def f():\n    {quoted}\n") == [2], quoted
    assert refused('def f():\n    """Return a Give."""\n') == []
