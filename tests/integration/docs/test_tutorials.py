"""The tutorials' commands, run as written. A page that lies fails here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script_of(page: Path) -> str:
    blocks = SHELL_BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks, f"{page} has no shell blocks"
    return "set -e\n" + "\n".join(blocks)


@pytest.mark.timeout(240)
def test_the_first_project_works_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "first-project.md"
    # A short path: the daemon's socket lies below it.
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TUTORIAL": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-c", script_of(page)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "exit code 6" in said  # the broken project was refused
    assert "modle" in said
    assert "read" in said
    assert "primary.subagents.reader" in said or "reader" in said
    assert "project.loaded" in said
    assert "as they were written" in said
    assert "Stopped" in said
