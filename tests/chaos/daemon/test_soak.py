"""A short soak: the same script that `make soak` runs for ten minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[3] / "scripts" / "soak.py"


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_the_daemon_is_killed_while_everybody_works(
    tmp_path: Path,
) -> None:
    """Plugins die, bridges stall, clients hang up; nothing is lost, done twice or left behind."""
    written = tmp_path / "soak.json"
    done = subprocess.run(
        [sys.executable, str(SOAK)],
        env={**os.environ, "SOAK_S": "6", "SOAK_SEED": "11", "SOAK_FIGURES": str(written)},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(written.read_text(encoding="utf-8"))
    assert figures["wrong"] == []
    assert figures["seed"] == 11
    assert figures["kills"] == 2
    faults = {"plugin": ["die", "die_after"],
              "bridge": ["die", "die_after", "garbage", "leave", "stall"]}  # fmt: skip
    every = {f"{who}: {fault}" for who, kinds in faults.items() for fault in kinds}
    assert set(figures["faults"]) == every
    assert min(figures["acknowledged"].values()) > 0, figures
    assert figures["done"]["clients that hung up"] > 0
