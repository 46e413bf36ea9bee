"""`make demo` plays to its end and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_demo_goes_through_and_touches_nothing_of_the_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo")],
        env={**os.environ, "HOME": str(home), "KAGED_HOME": str(home / "mine"),
             "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"row \d+ was changed", done.stdout)
    assert done.stdout.count("ALLOWED") == 1
    assert done.stdout.count("DENIED") == 3
    assert "plugin.storage_denied" in done.stdout
    assert list(home.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
