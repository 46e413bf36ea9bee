"""systemd reads the units that `kaged daemon unit` writes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kaged.cli.units import unit_file


@pytest.mark.parametrize("system", [False, True])
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path: Path, system: bool) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "systemd-analyze is missing; run scripts/setup --tests"
    command = shutil.which("true")
    assert command is not None
    unit = tmp_path / "kaged.service"
    unit.write_text(unit_file(command, system=system), encoding="utf-8")
    scope = "--system" if system else "--user"
    done = subprocess.run(
        [analyze, scope, "--man=no", "verify", str(unit)],
        capture_output=True, text=True, check=False, timeout=60,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert str(unit) not in done.stderr, done.stderr
