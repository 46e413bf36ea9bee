"""Whatever step of a start fails, and however, nothing is left and the next start works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thorough import THOROUGH

TESTS = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("fault_points.py")
# The fewest steps that a start of this kind has; fewer would mean that the faults miss it.
SCENARIOS = {
    "cage": 25,
    "cage from stock": 20,
    "refill of the stock": 3,
    "cage with a terminal": 25,
    "cage with a network": 35,
    "uncaged": 6,
    "uncaged with a terminal": 5,
    "peer": 25,
    "plugin": 35,
}
# With so few steps each one fails with every error, not with one of them.
SHORT = {"refill of the stock", "uncaged", "uncaged with a terminal"}


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.timeout(1800 if THOROUGH else 300)
def test_a_start_that_fails_at_any_step_leaves_nothing(scenario: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), scenario, *(["every"] if scenario in SHORT else [])],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    broken = [row for row in rows if row.get("left") or row.get("problem")]
    assert not broken, json.dumps(broken, indent=1)
    (recorded,) = [row["steps"] for row in rows if row["step"] == "recorded"]
    assert recorded >= SCENARIOS[scenario]
    failed = [row for row in rows if row["fault"].startswith("E")]
    assert not THOROUGH or len(failed) == 5 * recorded
    assert {row["fault"] for row in failed} == {"EMFILE", "ENOMEM", "EAGAIN", "ENOSPC", "EPERM"}
    assert "never retrieved" not in done.stderr
