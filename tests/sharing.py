"""Which test modules stay on one worker: their fixtures are set up once for a whole module.

xdist reads its own group marks off node ids, which pytest 9.2 no longer lets it change; so the
division of work is told here by path.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]

TOGETHER = ("tests/integration/toolbox/test_dap_delve.py",)
"""Modules with a dear fixture for a whole session that nobody else has a use for."""

WHOLE = "tests/whole/"
"""Each module of whole tests has one daemon."""

SOURCES = "tests/unit/reachability/"
"""They ask one report, for which all of the source is read."""

_SHARED = re.compile(r'scope="(?:module|package)"|^@(?:functools\.)?cache$', re.MULTILINE)
_FOLDER = "conftest.py"


@cache
def shares(path: str) -> bool:
    """Return whether a module, or its folder, sets something up once for all its tests."""
    module = ROOT / path
    return any(
        file.is_file() and _SHARED.search(file.read_text(encoding="utf-8"))
        for file in (module, module.with_name(_FOLDER))
    )


class ByModuleOrTest(LoadScopeScheduling):
    """Hands out whole modules where set-up is dear, and single tests everywhere else.

    Its parent searches all tests for each one that it hands out, and after each one that has ended
    counts all that its worker ever got: with fifteen thousand tests ten seconds of nothing else.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._places: dict[str, int] = {}

    def schedule(self) -> None:
        """Begin, with the place of each test in what all workers have collected."""
        first = next(iter(self.registered_collections.values()))
        self._places = {nodeid: place for place, nodeid in enumerate(first)}
        super().schedule()

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a work unit with its last test."""
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        unit = self.assigned_work[node][scope]
        unit[nodeid] = True
        if all(unit.values()):
            del self.assigned_work[node][scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = unit
        node.send_runtest_some([self._places[one] for one, ended in unit.items() if not ended])

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith(SOURCES):
            return SOURCES
        return path if path in TOGETHER or path.startswith(WHOLE) or shares(path) else nodeid


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModuleOrTest:
    """Return our scheduler to xdist."""
    return ByModuleOrTest(config, log)
