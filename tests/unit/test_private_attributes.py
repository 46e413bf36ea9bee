"""Tests outside `tests/unit` use the public face of what they test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LEFT_ALONE = ("unit", "guests")
PUBLIC_ALL_THE_SAME = frozenset(
    {"_asdict", "_exit", "_getframe", "_replace", "_run_exitfuncs", "_shutdown"}
)
BY_NAME = frozenset({"delattr", "getattr", "hasattr", "setattr"})
# An underscore behind a dot, not of self or cls, or in front of a name that is quoted or imported:
# where there is none, there is nothing to parse.
MAY_USE = re.compile(
    r"(?:\.(?:self|cls)|(?<!\bself)(?<!\bcls))\s*\.\s*_(?!_)|attr\(|import\s[^#]*?\b_[a-z]"
)


def private_uses(source: str) -> list[str]:
    """Return the private attributes of other objects that some code uses."""
    return [use for node in ast.walk(ast.parse(source)) for use in _uses(node)]


def _uses(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return []
        case ast.Attribute(attr=name) if _is_private(name):
            return [ast.unparse(node)]
        case ast.Call(
            func=ast.Name(id=how) | ast.Attribute(attr=how),
            args=[whose, ast.Constant(value=str(name)), *_],
        ) if how in BY_NAME and _is_private(name):
            return [f"{ast.unparse(whose)}.{name}"]
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "kaged":
            return [f"{module}.{one.name}" for one in names if _is_private(one.name)]
        case _:
            return []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_ALL_THE_SAME


def found() -> dict[str, list[str]]:
    """Return the private attributes that test files use, by file."""
    uses: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS)
        if name.parts[0] not in LEFT_ALONE:
            text = path.read_text(encoding="utf-8")
            if MAY_USE.search(text) and (here := private_uses(text)):
                uses[str(name)] = here
    return uses


def test_no_file_uses_a_private_attribute() -> None:
    """Use a public way; when there is none, the property may not matter to anybody outside."""
    assert found() == {}


def test_a_private_attribute_of_another_object_is_found_and_ones_own_is_not() -> None:
    assert private_uses("lab.store._cache.clear()") == ["lab.store._cache"]
    assert private_uses("patch.setattr(lab.store, '_write', broken)") == ["lab.store._write"]
    assert private_uses("from kaged.audit.log import AuditLog, _pump") == ["kaged.audit.log._pump"]
    assert private_uses("setattr(lab, 'name', 1)\nfrom fakes.lab import _inner") == []
    assert private_uses("self._mine, cls._ours, row._asdict(), x.__class__, os._exit(0)") == []


def test_what_is_not_parsed_has_no_private_use() -> None:
    for used in (
        "patch.setattr(a, '_x', 1)",
        "getattr(a, '_x')",
        "from kaged.a import _x",
        "from kaged.a import (\n    b,\n    _x,\n)",
    ):
        assert private_uses(used), used
        assert MAY_USE.search(used), used
    for used in ("other._x", "a.self._x", "a.cls._x", "f()._x", "(a\n  ._x)", "itself._x", "a. _x"):
        assert private_uses(used), used
        assert MAY_USE.search(used), used
    for unused in ("self._x", "cls._x", "a.__dict__", "a.x_y", "_x", "1.0"):
        assert not private_uses(unused), unused
