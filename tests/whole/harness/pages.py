"""Pages of the documentation that are run as they are written.

Blocks of `sh` are the commands, in one shell; blocks of `text` are lines that they must print, in
that order, where `…` stands for what differs from run to run.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from whole.harness.daemon import KAGED, Daemon

ROOT = Path(__file__).parents[3]
PATIENCE_S = 240.0
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page: Path, folder: Path) -> str:
    """Run a page in an empty folder and check what it prints; returns all of that."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    script = "set -e\n" + "\n".join(text for kind, text in blocks if kind == "sh")
    env = {
        "PATH": f"{Path(KAGED).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TUTORIAL": str(folder),
        "EXAMPLES": str(ROOT / "plugins" / "examples"),
    }
    Daemon.spoken += 1
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        subprocess.run(
            [KAGED, "daemon", "stop", "--force"],
            env={**env, "KAGED_HOME": str(folder / "home")},
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    _check(done.stdout, "".join(text for kind, text in blocks if kind == "text"))
    return done.stdout


def _check(said: str, shown: str) -> None:
    """See that every shown line was said, in the order of the page."""
    lines = said.splitlines()
    at = 0
    for line in shown.splitlines():
        wanted = re.compile(".*".join(map(re.escape, line.split("…"))))
        found = next((n for n in range(at, len(lines)) if wanted.fullmatch(lines[n])), None)
        assert found is not None, f"not said, or not in this order: {line}\n{said}"
        at = found + 1
