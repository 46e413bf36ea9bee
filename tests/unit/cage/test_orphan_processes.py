"""Marks: whose process is whose, and what of it is stale."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from kaged.cage.orphan_processes import (
    CAGE_MARK,
    MARK,
    daemon_mark,
    find_stale,
    gate_name,
    mark_value,
    remove_stale_gates,
)
from kaged.cage.setup_helper_main import kill_marked, marks_of


def _gone() -> str:
    """Return the mark of a daemon of this machine that no longer runs."""
    own = daemon_mark()
    return f"{own[:8]}{'0' * (len(own) - 8)}"


def _sleeper(mark: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["/bin/sleep", "1000"], env={MARK: mark})
    # For a moment after `exec` succeeded there is no environment to be seen yet.
    deadline = time.monotonic() + 30
    while not marks_of(str(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return process


def test_only_processes_of_daemons_that_are_gone_are_stale() -> None:
    elsewhere = f"{'0' * 8}{_gone()[8:]}"
    mine, stale, strange = (
        _sleeper(mark) for mark in (mark_value("a"), f"{_gone()}:a", f"{elsewhere}:a")
    )
    try:
        found = {one.pid: one.name for one in find_stale()}
        assert found.get(stale.pid) == "sleep"
        assert not {mine.pid, strange.pid, os.getpid()} & found.keys()
    finally:
        for one in (mine, stale, strange):
            one.kill()
            one.wait()


def test_a_process_is_killed_for_the_mark_that_it_carries_and_for_no_other() -> None:
    process = _sleeper(mark_value("a"))
    assert not kill_marked(str(process.pid), _gone())
    assert process.poll() is None
    assert marks_of(str(process.pid)) == {daemon_mark()}
    assert kill_marked(str(process.pid), daemon_mark())
    assert process.wait() == -9


def test_names_of_pipes_go_with_the_daemon_that_made_them(tmp_path: Path) -> None:
    mine, second = gate_name(), gate_name()
    assert mine != second
    stale = f"{CAGE_MARK}{_gone()}-1"
    for name in (mine, second, stale, "another"):
        os.mkfifo(tmp_path / name)
    remove_stale_gates(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine, second, "another"}
