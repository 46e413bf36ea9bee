"""A pytest plugin for runs in a copy: which rows a test proves, which lines it runs, how long.

Two files may be asked for by environment: KAGED_NOTE_ROWS gets the ids and the level of every
collected test, KAGED_NOTE_LINES what each test's own process ran of `kaged`. Processes that tests
start (daemons, commands) note their lines by themselves (`tracing`), for the test module as a
whole: a daemon of a module serves all of its tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from mutating.tracing import LINES, lines_of, tracer

ROWS = "KAGED_NOTE_ROWS"
SWITCH = "KAGED_NOTE_SWITCH"


class Noting:
    """Notes lines by test, outcomes and times of one run."""

    def __init__(self, target: Path, switch: Path, source: Path) -> None:
        self._target = target
        self._switch = switch
        self._source = source
        self._coverage = tracer(source)
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what runs now under the test's name."""
        told = json.loads(self._switch.read_text(encoding="utf-8"))
        told["module"] = item.nodeid.partition("::")[0]
        self._switch.write_text(json.dumps(told), encoding="utf-8")
        self._coverage.switch_context(item.nodeid)
        done = yield
        self._coverage.switch_context("")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note outcome and time; a test has passed when none of its phases failed."""
        test = self.tests.setdefault(report.nodeid, {"passed": True, "seconds": 0.0, "lines": {}})
        test["passed"] = test["passed"] and report.passed
        test["seconds"] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write everything down."""
        self._coverage.stop()
        for file, by_line in lines_of(self._coverage, self._source).items():
            for line, nodes in by_line.items():
                for node in nodes:
                    if node in self.tests:
                        self.tests[node]["lines"].setdefault(file, []).append(line)
        self._target.write_text(json.dumps(self.tests), encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Let property tests stop at the first failing example: nobody reads a smaller one."""
    settings.register_profile(
        "noting",
        settings.get_profile(settings.get_current_profile_name()),
        phases=(Phase.explicit, Phase.generate),
        database=None,
    )
    settings.load_profile("noting")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write down what the collected tests prove."""
    target = os.environ.get(ROWS)
    if target:
        found = {item.nodeid: _proves(item) for item in session.items}
        Path(target).write_text(json.dumps(found), encoding="utf-8")


def _proves(item: pytest.Item) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {"requirement": [], "requirement-level": []}
    for name, value in item.user_properties:
        if name in told:
            told[name].append(str(value))
    return {"ids": told["requirement"], "levels": told["requirement-level"]}


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure, if that is asked for."""
    target = os.environ.pop(LINES, None)  # not for the processes that tests start
    if target:
        noting = Noting(
            Path(target), Path(os.environ.pop(SWITCH)), config.rootpath / "src" / "kaged"
        )
        config.pluginmanager.register(noting, "kaged-noting")
