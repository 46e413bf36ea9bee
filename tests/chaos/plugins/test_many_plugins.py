"""Very many plugins at once: each starts, answers with its own words, and ends; nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from thorough import THOROUGH
from whole.harness.daemon import Daemon, wait_for
from whole.harness.plugin import PluginFolder

CROWD = 200 if THOROUGH else 30
AT_ONCE = 12
PATIENCE_S = 240.0 if THOROUGH else 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon of the test's own."""
    made = Daemon(tmp_path / "h")
    made.start()
    yield made
    made.close()


def together(act: Callable[[PluginFolder], Any], plugins: list[PluginFolder]) -> list[Any]:
    """Do something with many plugins at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(act, plugins))


def pids(plugins: list[PluginFolder]) -> set[int]:
    """Return the processes of the plugins that run."""
    found = together(lambda one: one.state(), plugins)
    return {one["pid"] for one in found if one["state"] == "running"}


def answers(plugins: list[PluginFolder]) -> bool:
    return together(lambda one: one.call("a.b"), plugins) == [one.name for one in plugins]


def gone(numbers: set[int]) -> bool:
    return not [pid for pid in numbers if Path(f"/proc/{pid}").exists()]


@pytest.mark.thorough
@pytest.mark.timeout(900 if THOROUGH else 200)
def test_a_crowd_of_plugins_starts_answers_and_ends_without_a_trace(
    daemon: Daemon, tmp_path: Path
) -> None:
    plugins = [
        PluginFolder(
            daemon,
            tmp_path / f"crowd-{number}",
            {"on": {"a.b": [{"result": f"crowd-{number}"}]}},
            name=f"crowd-{number}",
        )
        for number in range(CROWD)
    ]
    for one in plugins:
        one.install()
    states = together(lambda one: daemon.post(f"/plugins/{one.name}/enable")["state"], plugins)
    assert states == ["running"] * CROWD
    first = pids(plugins)
    assert len(first) == CROWD
    for _ in range(2):
        assert answers(plugins)

    assert daemon.stop() == 0
    wait_for(lambda: gone(first), "every process of the first life is gone")
    daemon.start()  # this time the daemon itself starts all of them at once
    wait_for(lambda: len(pids(plugins)) == CROWD, "all run again", PATIENCE_S)
    second = pids(plugins)
    assert not first & second
    assert answers(plugins)

    half = plugins[::2]
    ended = {one.state()["pid"] for one in half}
    together(lambda one: daemon.post(f"/plugins/{one.name}/disable"), half)
    wait_for(lambda: gone(ended), "the disabled ones are gone")
    assert answers(plugins[1::2])
    assert daemon.stop() == 0
    wait_for(lambda: gone(second), "every process is gone")
