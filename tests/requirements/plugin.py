"""The pytest side of the requirement table: unknown ids fail, results are written for conformance.

A run writes `build/requirements.json`: for every marked test its ids and outcome. `make test` sets
KAGED_FULL_RUN=1; then a skipped test fails the run, because a missing tool must never pass quietly.
Tests that this run left to the root part (`rootpart`) are in the file too, without an outcome. The
root part writes `build/requirements-root.json`, and conformance reads both.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements.levels import level_of
from requirements.rows import ROOT, known_ids
from rootpart import LeftOut, is_root_part, left_out

RESULTS = ROOT / "build" / "requirements.json"
ROOT_RESULTS = ROOT / "build" / "requirements-root.json"
_PROPERTY = "requirement"
_LEVEL = "requirement-level"
_WATCHED = ("src", "tests", "sdk", "plugins", "docs", "benchmarks", "scripts", "pyproject.toml")


class Outcomes:
    """Gathers what happened to each marked test, on the process that sees all reports."""

    def __init__(self) -> None:
        self.ids: dict[str, list[str]] = {}
        self.levels: dict[str, list[str]] = {}
        self.failed: set[str] = set()
        self.passed: set[str] = set()
        self.skipped: list[str] = []

    def add(self, report: pytest.TestReport) -> None:
        """Take one phase of one test into account."""
        ids = [str(value) for name, value in report.user_properties if name == _PROPERTY]
        node = report.nodeid
        if ids:
            self.ids[node] = ids
            self.levels[node] = [
                str(value) for name, value in report.user_properties if name == _LEVEL
            ]
        if report.failed:
            self.failed.add(node)
        elif report.skipped:
            self.skipped.append(node)
        elif report.when == "call":
            self.passed.add(node)

    def as_json(self, *, full: bool, left: LeftOut | None = None) -> dict[str, object]:
        """Return the file's content; a test counts as passed only if no phase failed."""
        return {
            "fingerprint": tree_fingerprint(),
            "full": full,
            "tests": [
                {
                    "node": node,
                    "ids": ids,
                    "levels": self.levels[node],
                    "passed": node in self.passed - self.failed,
                }
                for node, ids in sorted(self.ids.items())
            ],
            "left_to_root": [
                {"node": node, "ids": ids} for node, ids in sorted((left or {}).items()) if ids
            ],
        }


def tree_fingerprint() -> str:
    """Hash every file that can change a test's outcome, so that old results are never reused."""
    digest = hashlib.sha256()
    for path in _watched_files():
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse unknown ids and hand each test's ids to its reports."""
    known = known_ids()
    unknown: list[str] = []
    for item in items:
        for mark in item.iter_markers("requirement"):
            for row_id in mark.args:
                if row_id not in known:
                    unknown.append(f"{item.nodeid}: {row_id}")
                item.user_properties.append((_PROPERTY, row_id))
                item.user_properties.append((_LEVEL, level_of(item.path, mark)))
    if unknown:
        raise pytest.UsageError("unknown requirement ids:\n  " + "\n  ".join(unknown))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start gathering, on the controller only."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config), "kaged-requirements")


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._outcomes = Outcomes()
        self._full = os.environ.get("KAGED_FULL_RUN") == "1"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.add(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            return
        if self._full:
            RESULTS.parent.mkdir(exist_ok=True)
            left = left_out(self._config)
            results = ROOT_RESULTS if is_root_part() else RESULTS
            _write(results, self._outcomes.as_json(full=True, left=left))
            if self._outcomes.skipped and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._full and self._outcomes.skipped:
            terminalreporter.section("skipped in a full run: this fails the run")
            for node in self._outcomes.skipped:
                terminalreporter.line(node)


def _write(path: Path, content: dict[str, object]) -> None:
    """Write over what is there; root's file belongs to whom the checkout does, who cleans it up."""
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    path.chmod(0o644)
    owner = ROOT.stat()
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _watched_files() -> Iterator[Path]:
    for name in _WATCHED:
        top = ROOT / name
        found = [top] if top.is_file() else top.rglob("*") if top.is_dir() else []
        for path in sorted(found):
            if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts):
                yield path
