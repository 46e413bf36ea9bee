"""A short soak: the same script that `make soak` runs for ten minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[3] / "scripts" / "soak.py"


@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost_when_the_daemon_is_killed_while_everybody_works() -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK)],
        env={**os.environ, "SOAK_S": "9"},
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    figures = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert figures["wrong"] == []
    assert figures["kills"] >= 1
    assert min(figures["acknowledged"].values()) > 0, figures
