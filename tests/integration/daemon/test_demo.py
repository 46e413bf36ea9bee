"""`make demo` plays to its end and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(300)
def test_the_demo_goes_through_and_touches_nothing_of_the_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo")],
        env={**os.environ, "HOME": str(home), "KAGED_HOME": str(home / "mine"),
             "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"row \d+ was changed", done.stdout)
    for line in (
        "ALLOWED  chart.read",
        "DENIED  chart.read",
        "DENIED  journal.peek",
        "ALLOWED  edit.text log.txt",
        "DENIED  file.read secrets.txt, for the lookout",
        "UNDONE  log.txt: day one: calm sea",
        "REWOUND  log.txt: day one: calm sea",
    ):
        assert line in done.stdout
    assert done.stdout.count("DENIED  chart.read") == 2
    assert "I kept that from our last journey" in done.stdout
    assert "plugin.storage_denied" in done.stdout
    assert list(home.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
