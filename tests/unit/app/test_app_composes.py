"""`app` only composes: it is small and holds no state of its own beyond the run and the start."""

from __future__ import annotations

import ast
from pathlib import Path

import kaged.app

FOLDER = Path(kaged.app.__file__).parent
MAX_LINES = 2000
STATEFUL = {"Startup", "_Run"}
"""What lives as long as the process: its signals and reloads, and the start in the background."""


def _modules() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")}


def _is_frozen_dataclass(node: ast.ClassDef) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Name)
        and one.func.id == "dataclass"
        and any(
            option.arg == "frozen"
            and isinstance(option.value, ast.Constant)
            and option.value.value is True
            for option in one.keywords
        )
        for one in node.decorator_list
    )


def test_app_is_small() -> None:
    assert sum(text.count("\n") for text in _modules().values()) <= MAX_LINES


def test_classes_of_app_only_hold_what_was_composed() -> None:
    found = {
        node.name
        for text in _modules().values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not _is_frozen_dataclass(node)
    }
    assert found == STATEFUL


def test_nothing_names_what_is_built_later() -> None:
    """A lambda around a single call exists only to name a variable that is assigned later."""
    assert [name for name, text in _modules().items() if "made below" in text] == []
    assert "PLW0108" not in _modules()["subsystems.py"]
