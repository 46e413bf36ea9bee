from __future__ import annotations

import ast
import sys
from pathlib import Path

import kaged.wire

_MODULES = sorted(Path(kaged.wire.__file__ or "").parent.glob("*.py"))
_IO = {
    "asyncio",
    "socket",
    "subprocess",
    "sqlite3",
    "threading",
    "http",
    "urllib",
    "multiprocessing",
}


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_only_the_hot_path_of_the_host_needs_a_third_party_package() -> None:
    """Guests run on the standard library alone; `fastjson` is the one module they do not import."""
    assert len(_MODULES) > 10
    outside: dict[str, set[str]] = {}
    for path in _MODULES:
        found = {
            name
            for name in _imports(path)
            if name.partition(".")[0] not in sys.stdlib_module_names
            and not name.startswith(("kaged.wire", "kaged.base."))
        }
        if found:
            outside[path.name] = found
    assert outside == {"fastjson.py": {"msgspec"}}


def test_no_module_but_the_hosts_imports_the_hot_path() -> None:
    for path in _MODULES:
        assert "kaged.wire.fastjson" not in _imports(path)


def test_nothing_here_does_io() -> None:
    for path in _MODULES:
        assert not {name.partition(".")[0] for name in _imports(path)} & _IO


def test_the_package_itself_imports_nothing() -> None:
    assert _imports(Path(kaged.wire.__file__ or "")) == set()
