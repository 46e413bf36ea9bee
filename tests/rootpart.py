"""The root part: which tests need root, where they run, and how everybody else learns of them.

A test marked `needs_root` becomes other users, counts with cgroups that only root may make, gives
files away or makes devices. For an ordinary user it is left out (not skipped: a skip means that a
tool is missing, and fails a full run) and named at the end. `make test-root` (KAGED_ROOT_PART=1)
runs these alone, and what is in `AGAIN` a second time: a daemon of root takes other ways there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

AGAIN = (
    "tests/integration/cage/",
    "tests/integration/tools/test_other_users.py",
    "tests/security/cage/",
    "tests/security/sandbox/test_channel_reach.py",
)
TESTS = Path(__file__).parent
_MARK = "needs_root"
_AS_USER = re.compile(r"\[user[-\]]")  # cases that become an ordinary user: they were one already
_KEY = "kaged-root-part"
_PROPERTY = "requirement"

LeftOut = dict[str, list[str]]
left_out_key = pytest.StashKey[LeftOut]()


def is_root_part() -> bool:
    """Return whether this run is the root part alone."""
    return os.environ.get("KAGED_ROOT_PART") == "1"


def left_out(config: pytest.Config) -> LeftOut:
    """Return the tests that this run left to the root part, each with its requirement ids."""
    return config.stash.setdefault(left_out_key, {})


def of_root_part(item: pytest.Item) -> bool:
    """Return whether a test belongs to the root part."""
    return needs_root(item) or (item.nodeid.startswith(AGAIN) and not _AS_USER.search(item.nodeid))


def needs_root(item: pytest.Item) -> bool:
    """Return whether a test means anything to root only."""
    return item.get_closest_marker(_MARK) is not None


def named(nodes: LeftOut) -> list[str]:
    """Return a line for each test function, with how many cases it has."""
    counts = Counter(node.partition("[")[0] for node in nodes)
    return [name if n == 1 else f"{name} ({n} cases)" for name, n in sorted(counts.items())]


def pytest_configure() -> None:
    """Refuse a root part without root: it would leave out everything and pass."""
    if is_root_part() and os.geteuid() != 0:
        raise pytest.UsageError("the root part needs root: run `sudo make test-root`")


def may_hold_root_tests(module: Path) -> bool:
    """Return whether a test module can have a test of the root part, by what is written in it.

    It is run a second time as a whole, says the mark's name, or imports a helper that says it.
    """
    if f"tests/{module.relative_to(TESTS).as_posix()}".startswith(AGAIN):
        return True
    text = module.read_text(encoding="utf-8")
    return _MARK in text or any(re.search(rf"\b{name}\b", text) for name in _marking_helpers())


@cache
def _marking_helpers() -> tuple[str, ...]:
    helpers = sorted((TESTS / "fakes").rglob("*.py"))
    return tuple(one.stem for one in helpers if _MARK in one.read_text(encoding="utf-8"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not even import the modules that have nothing for the root part: nearly all of them."""
    if is_root_part() and collection_path.name.startswith("test_") and collection_path.is_file():
        return None if may_hold_root_tests(collection_path.resolve()) else True
    return None


@pytest.hookimpl(trylast=True)  # after the requirement ids are on the tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not belong to this run."""
    if is_root_part():
        outside = [item for item in items if not of_root_part(item)]
    elif os.geteuid() != 0:
        outside = [item for item in items if needs_root(item)]
        modules = {item.path for item in outside}
        unseen = [str(path) for path in modules if not may_hold_root_tests(path)]
        if unseen:
            raise pytest.UsageError(
                f"the root part would not look into {', '.join(sorted(unseen))}"
            )
        for item in outside:
            ids = [str(value) for name, value in item.user_properties if name == _PROPERTY]
            left_out(config)[item.nodeid] = ids
    else:
        return
    if outside:
        config.hook.pytest_deselected(items=outside)
        gone = set(outside)
        items[:] = [item for item in items if item not in gone]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report to the process that hands out the work what this worker left out."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = left_out(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker left out; each collected the same, and one that crashed says nothing."""
    left_out(node.config).update(getattr(node, "workeroutput", {}).get(_KEY, {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name what was left out, and the command that runs it."""
    nodes = left_out(config)
    if not nodes:
        return
    terminalreporter.section("left to the root part")
    for line in named(nodes):
        terminalreporter.line(line)
    terminalreporter.line(f"the root part would add {len(nodes)} tests: run `sudo make test-root`")
