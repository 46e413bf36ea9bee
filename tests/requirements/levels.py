"""How a row is proven: `unit`, `contract` or `whole`; and that whole tests are whole.

Whole is more than a word in a mark. A module with whole tests may import nothing of `kaged`, at
whatever distance, and a whole test that passed without having spoken to a daemon's process fails.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
PRODUCT = "kaged"
PROOFS = ("unit", "contract", "whole")


def level_of(path: Path, mark: pytest.Mark) -> str:
    """Return how a marked test in this file proves its rows."""
    said = mark.kwargs.get("level")
    if said is not None:
        if said not in PROOFS:
            raise pytest.UsageError(f"{path}: no level {said!r}; they are {', '.join(PROOFS)}")
        return str(said)
    return _level_of_folder(path)


@cache
def _level_of_folder(path: Path) -> str:
    return "unit" if TESTS / "unit" in path.resolve().parents else "contract"


def is_whole(item: pytest.Item) -> bool:
    """Return whether a test claims to prove rows as a whole."""
    return any(level_of(item.path, mark) == "whole" for mark in item.iter_markers("requirement"))


def product_imports(path: Path) -> list[str]:
    """Return how a test module reaches the product by imports: `a.py > b.py > kaged.c`."""
    first = path.resolve()
    ways = {first: _shown(first)}
    found: list[str] = []
    waiting = deque([first])
    while waiting:
        file = waiting.popleft()
        for name in _imports(file):
            if name.split(".")[0] == PRODUCT:
                found.append(f"{ways[file]} > {name}")
            for inner in _files_of(name):
                if inner not in ways:  # one way to each module says enough
                    ways[inner] = f"{ways[file]} > {_shown(inner)}"
                    waiting.append(inner)
    return found


@cache
def _imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return tuple(found)


def _statements(tree: ast.AST) -> Generator[ast.AST]:
    """Yield every statement at whatever depth: a tenth of all nodes, and imports are among them."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


def _shown(path: Path) -> str:
    return str(path.relative_to(TESTS)) if TESTS in path.parents else path.name


@cache
def _files_of(name: str) -> tuple[Path, ...]:
    base = TESTS.joinpath(*name.split("."))
    return tuple(file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file())


class WholeTests:
    """Holds whole tests to what they claim."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse whole marks in modules that import the product."""
        files = sorted({item.path for item in items if is_whole(item)})
        ways = [way for file in files for way in product_imports(file)]
        if ways:
            raise pytest.UsageError("whole tests import the product:\n  " + "\n  ".join(ways))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a whole test that passed and never spoke to a daemon."""
        report = yield
        if call.when == "setup":
            item.stash[_SPOKEN] = _spoken()
        elif (
            call.when == "call"
            and report.passed
            and is_whole(item)
            and _spoken() == item.stash[_SPOKEN]
        ):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: marked whole, but it spoke to no daemon's process"
        return report


_SPOKEN = pytest.StashKey[int]()


def _spoken() -> int:
    # Looked up, not imported: a run without whole tests has no use for the harness.
    module: Any = sys.modules.get("whole.harness.daemon")
    return module.Daemon.spoken if module is not None else 0


def pytest_configure(config: pytest.Config) -> None:
    """Watch over the whole tests of this process."""
    config.pluginmanager.register(WholeTests(), "kaged-whole")
