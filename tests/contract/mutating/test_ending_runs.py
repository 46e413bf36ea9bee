"""A run of broken code that hangs is ended, with every process that it started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from requirements.rows import ROOT

LEFT = """
import os, subprocess, sys, time
from pathlib import Path

def test_leaves_a_process_and_hangs():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("new.txt").write_text(f"{os.getpid()} {child.pid}")
    os.rename("new.txt", "pid.txt")
    time.sleep(1000)
"""

RUN = """
import sys, time
from pathlib import Path
from mutating import running
from mutating.copies import Copy

class Clock:  # the time is up as soon as the test has begun to hang
    sleep = staticmethod(time.sleep)
    monotonic = staticmethod(lambda: 1e9 if Path(sys.argv[1], "pid.txt").exists() else 0.0)

running.time = Clock
running.adopt_orphans()
copy = Copy(Path(sys.argv[1]))
copy.python = Path(sys.executable)
print(running.run(copy, ["test_it.py"], limit_s=60, options=["-p", "no:timeout"]).code)
"""


def test_a_run_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "test_it.py").write_text(LEFT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "None", done.stdout + done.stderr
    for process in (tmp_path / "pid.txt").read_text(encoding="utf-8").split():
        assert not Path(f"/proc/{process}").exists()
