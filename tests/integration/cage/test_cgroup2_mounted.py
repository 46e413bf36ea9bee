"""The version 2 back end on a real tree of the kernel's, mounted where nobody else sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("cgroup2_child.py")
SOURCES = Path(__file__).parents[3] / "src"


def run_on_a_mounted_tree(folder: Path) -> dict[str, Any]:
    script = 'mount -t cgroup2 none "$1" && shift && exec "$@"'
    done = subprocess.run(
        [
            *("unshare", "--mount", "--cgroup", "sh", "-c", script, "sh", str(folder)),
            *(sys.executable, str(CHILD), str(folder)),
        ],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.needs_root
def test_groups_of_version_2_are_joined_swept_and_removed_for_real(tmp_path: Path) -> None:
    for _ in range(2):
        found = run_on_a_mounted_tree(tmp_path)
        assert found["inside"][0].endswith("/kaged-1-0/b1-cage-1")
        assert found["destroyed_while_busy"] is False
        assert (found["stale"], found["member_ended"], found["left"]) == (True, -9, False)


@pytest.mark.needs_root
def test_version_2_limits_where_it_has_the_controllers_and_is_not_believed_elsewhere(
    tmp_path: Path,
) -> None:
    found = run_on_a_mounted_tree(tmp_path)
    if {"memory", "pids"} <= set(found["controllers"]):
        assert (found["hog"], found["destroyed"]) == (-9, True)
        assert found["oom_kills"] >= 1
    else:  # version 1 of this host holds them; only its owner could give them up
        assert found["refused"].startswith("the memory and pids controllers are not delegated")
        assert found["chosen"] in {"cgroup1", "rlimits"}
