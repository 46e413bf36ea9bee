"""A daemon whose cages fail to start, or that is killed while they do, leaves nothing of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from leftovers import Leftovers
from thorough import THOROUGH, counted
from whole.harness.daemon import Daemon, wait_for
from whole.harness.project import Project

# In four rounds each number of cages has begun when the kill comes.
KILLS, STARTS_AT_ONCE = counted(4, 20, 500), 6
FAILED_STARTS, MOST_STARTS = (40 if THOROUGH else 5), 1000
HELPER = b"setup_helper_main"
ALONE = "KAGED_TEST_ALONE"
OUTER_RUN = ("KAGED_FULL_RUN", "KAGED_ROOT_PART", "PYTEST_")
SHELL = {"capabilities": ["shell"]}
EVERYTHING = {**SHELL, "fs": [{"mode": "rw", "path": "."}]}
FLIP = """\
import os, time
os.symlink("../secret", "link")
while not os.path.exists("stop"):
    os.rename("child", "kept")
    os.rename("link", "child")
    time.sleep(0.002)
    os.rename("child", "link")
    os.rename("kept", "child")
    time.sleep(0.006)
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Yield a maker of daemons on one home after the other; none outlives the test."""
    made: list[Daemon] = []

    def make(**options: str) -> Daemon:
        made.append(Daemon(tmp_path / f"h{len(made)}", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def orphans(request: pytest.FixtureRequest) -> Callable[[], dict[int, str]]:
    """Return a look at the cages and helpers of this test run that have lost their daemon."""
    found: Any = request.config.pluginmanager.get_plugin("kaged-leftovers")
    assert isinstance(found, Leftovers)
    return found.orphans


def _children(pid: int) -> dict[int, bytes]:
    """Return the direct children of a process, with their command lines."""
    found: dict[int, bytes] = {}
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
        for word in text.split():
            with contextlib.suppress(OSError):
                found[int(word)] = Path(f"/proc/{word}/cmdline").read_bytes()
    return found


def _cages(pid: int) -> list[int]:
    """Return the children of a daemon that are, or are about to become, a cage's bwrap."""
    return [child for child, words in _children(pid).items() if b"\0--args\0" in words]


def _helpers(daemon: Daemon) -> list[int]:
    """Return the setup helper and what it has forked ahead; empty while there is none."""
    found = [child for child, words in _children(daemon.pid).items() if HELPER in words]
    return [*found, *(worker for one in found for worker in _children(one))]


def _descriptors(pid: int) -> Counter[str]:
    """Count what a process holds open, by kind; sockets come and go with its clients."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            kind, _, which = str(entry.readlink()).partition(":[")
            found[kind if which.rstrip("]").isdigit() else f"{kind}:{which}"] += 1
    del found["socket"]
    return found


def _groups(daemon: Daemon) -> set[str]:
    roots = {line.split()[4] for line in _mounts(daemon.pid) if " - cgroup" in line}
    return {
        str(path)
        for root in roots
        for path in Path(root).rglob(f"kaged-{daemon.pid}-*/*")
        if path.is_dir()
    }


def _mounts(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines())


def _run(daemon: Daemon, project: Project, agent: str, command: str, cwd: str) -> str:
    """Run a command in an agent's cage; returns "ran", or status and code of the refusal."""
    params = {"command": command, "cwd": cwd, "timeout": 600_000}
    body = {"agent": agent, "tool": "shell.bash", "params": params}
    path = f"/api/v1/projects/{project.id}/tools/call"
    answer = daemon.client.post(path, json=body)
    if answer.is_success:
        return "ran"
    shown = answer.json()["error"]
    return f"{answer.status_code} {shown['code']} {shown['message']}"


def _start_quietly(daemon: Daemon, project: Project) -> None:
    with contextlib.suppress(httpx.TransportError, AssertionError):  # it is being killed
        _run(daemon, project, "primary", "sleep 1000", ".")


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_guest_that_swaps_a_folder_while_cages_start_leaks_nothing(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    root = tmp_path / "p"
    (root / "work/child").mkdir(parents=True)
    (root / "secret").mkdir()
    (root / "secret/token").write_text("sesame", encoding="utf-8")
    shell = {"model": "default", "system_prompt": "p", "tools": {"shell.*": {"enabled": True}}}
    agents = {
        name: {**shell, "cage": {**SHELL, "fs": [{"mode": "rw", "path": path}]}}
        for name, path in (("flipper", "work"), ("worker", "work/child"))
    }
    daemon = own()
    daemon.start()
    project = daemon.load(Project(root, cage=EVERYTHING, subagents=agents))
    flipper, worker = (f"primary.subagents.{name}" for name in agents)
    for _ in range(4):  # helpers, caches and the stock of launchers stand
        assert _run(daemon, project, worker, "true", "./work/child") == "ran"

    def now() -> tuple[Counter[str], set[str], set[str], int]:
        pid = daemon.pid
        return _descriptors(pid), _groups(daemon), _mounts(pid), len(_cages(pid))

    before = now()
    with ThreadPoolExecutor(1) as pool:
        flipping = pool.submit(_run, daemon, project, flipper, f"python3 -c '{FLIP}'", "./work")
        wait_for((root / "work/link").is_symlink, "the first swap")
        answers: Counter[str] = Counter()
        while answers["late"] < FAILED_STARTS and answers.total() < MOST_STARTS:
            said = _run(daemon, project, worker, "true", "./work/child")
            # The rest is refused before there is a process; these fail when bwrap runs already.
            answers["late" if "the cage could not be" in said else said] += 1
        (root / "work/stop").touch()
        assert flipping.result() == "ran"
    assert answers["late"] == FAILED_STARTS, answers
    wait_for(lambda: now()[1:] == before[1:] and now()[0] <= before[0], "what was there before")


@pytest.mark.thorough
@pytest.mark.timeout(4 * 3600 if THOROUGH else 300)
def test_a_daemon_killed_while_cages_start_leaves_none_of_them(
    own: Callable[..., Daemon], tmp_path: Path, orphans: Callable[[], dict[int, str]]
) -> None:
    daemon = own()
    for number in range(KILLS):
        daemon.start()
        project = daemon.load(Project(tmp_path / "p", cage=EVERYTHING))
        with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
            for _ in range(STARTS_AT_ONCE):
                pool.submit(_start_quietly, daemon, project)
            # Each time a little later: the first ones wait already while others only begin.
            wait_for(lambda least=1 + number % 4: len(_cages(daemon.pid)) >= least, "a start")
            os.kill(daemon.pid, signal.SIGKILL)
        daemon.kill()
        wait_for(lambda: not orphans(), f"the end of every cage after kill {number + 1}")


def _leave_cages(daemon: Daemon, project: Project) -> list[int]:
    """Kill a daemon and its helper while two cages wait at their start; returns these."""
    assert _run(daemon, project, "primary", "true", ".") == "ran"
    helpers = wait_for(lambda: _helpers(daemon), "the setup helper")
    for pid in helpers:  # so that nobody sets limits, and the next cages wait at their start
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(_start_quietly, daemon, project)
        waiting = wait_for(
            lambda: (
                found
                if len(found := [one for pid in _cages(daemon.pid) for one in _children(pid)]) == 2
                else []
            ),
            "two cages at their start",
        )
        for pid in (daemon.pid, *helpers):
            os.kill(pid, signal.SIGKILL)
    daemon.kill()
    return waiting


def _alone(test: str) -> bool:
    """Run a test of this file again where no process of other tests is; false in that second run.

    A daemon ends what any dead daemon of its user left, and other tests start daemons all the time.
    """
    if os.environ.get(ALONE):
        return False
    # Two starts and a command are not worth loading what forks them.
    # The results of the full run are written by the run around this one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OUTER_RUN)}
    done = subprocess.run(
        ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child",
         "--mount-proc", "--", sys.executable, "-m", "pytest", "-q", "-n", "0", "-p",
         "no:cacheprovider", f"{__file__}::{test}"],
        env={**kept, ALONE: "1", "KAGED_TESTS_EXEC": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    return True


@pytest.mark.timeout(300)
def test_cages_that_outlive_daemon_and_helper_are_named_by_doctor_and_ended_by_the_next_start(
    own: Callable[..., Daemon],
    tmp_path: Path,
    orphans: Callable[[], dict[int, str]],
    request: pytest.FixtureRequest,
) -> None:
    if _alone(request.node.name):
        return
    daemon = own()
    daemon.start()
    waiting = _leave_cages(daemon, daemon.load(Project(tmp_path / "p", cage=EVERYTHING)))
    (row,) = [
        one
        for one in daemon.cli("doctor", "--offline", "--json", code=None).json["rows"]
        if one["id"] == "cage.leftovers"
    ]
    assert set(waiting) <= orphans().keys()  # a look ends nothing
    assert row["status"] == "warn"
    assert all(str(pid) in row["cause"] for pid in waiting), row
    assert "kaged daemon" in row["fix"]
    daemon.start()
    wait_for(lambda: not orphans(), "the end of what was left")
    ended = {
        one["pid"]
        for event in daemon.audit("cage.orphans_ended")
        for one in event["data"]["processes"]
    }
    assert ended >= set(waiting)
    project = daemon.load(Project(tmp_path / "p", cage=EVERYTHING))
    assert _run(daemon, project, "primary", "true", ".") == "ran"
