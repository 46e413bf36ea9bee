"""The disk is full, read-only, or the process dies: files are whole, old or new, never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kaged.workspace.staging import TEMP_PREFIX
from requirements import requirement

CHILDREN = Path(__file__).parent / "children"


def run_on_a_small_disk(script: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run a child with a disk of its own, in a mount namespace that ends with it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    child = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec",
         'mount -t tmpfs -o size=4m tmpfs "$1"; shift; exec "$@"',
         "sh", str(disk), sys.executable, str(CHILDREN / script), str(disk), *options],
        check=False,
        capture_output=True,
        timeout=100,
    )  # fmt: skip
    if child.returncode == 1 and b"unshare" in child.stderr:
        pytest.skip(f"no user namespaces here: {child.stderr.decode().strip()}")
    assert child.returncode == 0, child.stderr.decode() + child.stdout.decode()
    return json.loads(child.stdout.splitlines()[-1])


@requirement("AT-FILE-30", "AT-EDIT-15")
def test_a_disk_that_fills_up_in_the_middle_of_a_write_changes_nothing(tmp_path: Path) -> None:
    seen = run_on_a_small_disk("full_disk.py", tmp_path, "one")
    for tool in ("file.write", "file.create", "edit.text", "file.write new"):
        assert seen[tool]["code"] == "file_write_failed", tool
        assert "No space left" in seen[tool]["message"]
        assert seen[tool]["unchanged"] is True, tool
    assert seen["afterwards"] == "written"
    assert seen["leftovers"] == []


def test_a_disk_that_fills_up_in_the_middle_of_many_files_changes_none(tmp_path: Path) -> None:
    """The writer that edit.ast uses; half of the new contents fit, the others do not."""
    seen = run_on_a_small_disk("full_disk.py", tmp_path, "many")
    assert seen["code"] == "file_write_failed"
    assert seen["staged_before_it_failed"] > 3
    assert seen["unchanged"] is True
    assert seen["leftovers"] == []
    assert seen["undo"] == "file_write_failed", "an undo is a change like any other"
    assert seen["unchanged_by_undo"] is True
    assert seen["undo_with_space"] == "original"


def test_a_read_only_tree_is_read_and_not_written(tmp_path: Path) -> None:
    seen = run_on_a_small_disk("full_disk.py", tmp_path, "read-only")
    assert seen["read"] == "1: original"
    for tool in ("file.write", "file.create", "edit.text"):
        assert seen[tool]["code"] == "file_write_failed", tool
        assert "Read-only file system" in seen[tool]["message"]


@requirement("AT-FILE-30")
@pytest.mark.parametrize("delay_ms", [0, 3, 10, 30])
def test_a_kill_in_the_middle_of_writes_leaves_whole_files(tmp_path: Path, delay_ms: int) -> None:
    child = subprocess.Popen(
        [sys.executable, str(CHILDREN / "endless_writes.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    # Some hundreds of lines are some hundreds of writes; the kill comes wherever it comes.
    for _ in range(10 + delay_ms):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    for name in ("a", "b", "c"):
        data = (tmp_path / name).read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1, "one content, from its beginning to its end"
    strange = {one.name for one in tmp_path.iterdir()} - {"a", "b", "c"}
    assert all(name.startswith(TEMP_PREFIX) for name in strange)
