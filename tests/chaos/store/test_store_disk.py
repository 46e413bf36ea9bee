"""The disk is full, or may not be written: changes stop, reading goes on, and it all comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILDREN = Path(__file__).parent / "children"


def run_on_a_small_disk(script: str, tmp_path: Path) -> dict[str, Any]:
    """Run a child with a disk of its own, in a mount namespace that ends with it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    child = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec",
         'mount -t tmpfs -o size=4m tmpfs "$1"; shift; exec "$@"',
         "sh", str(disk), sys.executable, str(CHILDREN / script), str(disk)],
        check=False,
        capture_output=True,
        timeout=100,
    )  # fmt: skip
    if child.returncode == 1 and b"unshare" in child.stderr:
        pytest.skip(f"no user namespaces here: {child.stderr.decode().strip()}")
    assert child.returncode == 0, child.stderr.decode() + child.stdout.decode()
    return json.loads(child.stdout.splitlines()[-1])


def test_a_full_disk_stops_changes_and_nothing_else(tmp_path: Path) -> None:
    seen = run_on_a_small_disk("fill_disk.py", tmp_path)
    assert seen["refused"] == ["audit_unavailable", "store_unavailable"]
    assert "disk is full" in seen["message"]
    assert "free some space" in seen["store_fix"]
    assert seen["decision"] is False
    assert seen["reads_went_on"] == 20
    assert seen["health_while_full"] is False
    assert seen["health_after"] is True
    assert seen["kept_after"] == "written again"
    assert seen["findings"] == []
    assert seen["names"][0] == "plugin.enabled"
    assert "audit.degraded" in seen["names"]
    assert "audit.recovered" in seen["names"]
    assert seen["quiet_events"] == 20


def test_a_disk_that_fills_up_under_load_loses_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    seen = run_on_a_small_disk("flood_disk.py", tmp_path)
    assert seen["refused"] > 0
    assert seen["acknowledged"] > 100
    assert seen["missing"] == []
    assert seen["findings"] == []


def test_a_read_only_disk_is_reported_with_a_way_out(tmp_path: Path) -> None:
    seen = run_on_a_small_disk("read_only_disk.py", tmp_path)
    assert seen["new"] == "store_unavailable"
    assert seen["existing"] == "store_unavailable"
    assert "writable" in seen["fix"]
    assert seen["rows_after"] == 1


def test_a_database_on_a_read_only_medium_can_still_be_read(tmp_path: Path) -> None:
    """As an auditor would: the disk is mounted read-only and the trail is looked at."""
    seen = run_on_a_small_disk("read_only_disk.py", tmp_path)
    assert seen["rows_read_only"] == 1
    assert "copy the database together with its -wal file" in seen["half"]
