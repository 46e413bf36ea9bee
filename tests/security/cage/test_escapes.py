"""Every attempt to leave a cage, one test each: by identity of the cage, by seccomp profile.

The attempts run inside real cages (`attacks.py`), started by a daemon-like program (`arena.py`)
that runs as root or as an ordinary user; one cage per combination, whose table all its tests read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from security.cage.attacks import ATTACKS, PIPES
from security.cage.expected import expected

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "src"
NAMES = (
    *ATTACKS,
    "E14-datagram-socket-got-something",
    *(f"E55-what-came-out-of-{name}" for name in PIPES),
)
COMBINATIONS = [
    # Only root can start a cage of another uid.
    pytest.param(
        (identity, profile),
        marks=() if identity == "user" else pytest.mark.needs_root,
        id=f"{identity}-{profile}",
    )
    for identity in ("user", "separate", "uid0")
    for profile in ("default", "relaxed")
]
KIND = {"user": "daemon-user", "separate": "separate-user", "uid0": "root-shown-as-user"}
NOBODY = 65534


@cache
def outcome(identity: str, profile: str) -> dict[str, Any]:
    """Run the arena once for a combination."""
    folder = Path(tempfile.mkdtemp(prefix="kaged-arena-"))
    try:
        folder.chmod(0o755)
        command = [python_for_everyone(), str(HERE / "arena.py"), identity, profile, str(folder)]
        if identity == "user" and os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            user = str(NOBODY)
            command = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command]
        done = subprocess.run(
            command,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": ":".join([str(SOURCES), *site_packages()]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def python_for_everyone() -> str:
    """Return an interpreter that an ordinary user can reach; ours may lie below a private home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in (f"/usr/bin/python{version}", "/usr/bin/python3"):
        if Path(path).exists():
            return path
    return sys.executable


def site_packages() -> list[str]:
    """Return where our libraries are, for an interpreter that is not ours."""
    return [path for path in sys.path if path.endswith("site-packages")]


@pytest.fixture(params=COMBINATIONS, scope="module")
def run(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str]:
    identity, profile = request.param
    found = outcome(identity, profile)
    assert found["identity"] == KIND[identity], found
    return found, profile


@pytest.mark.parametrize("name", NAMES)
def test_an_attempt_to_leave_the_cage_fails(name: str, run: tuple[dict[str, Any], str]) -> None:
    found, profile = run
    assert name in found["table"], found["errors"]
    assert found["table"][name] in expected(name, profile)


@requirement("PH-CAGE-14")
def test_a_plugin_reads_its_grant_and_neither_passwd_nor_the_file_beside(
    run: tuple[dict[str, Any], str],
) -> None:
    """The program that reports this was itself read from the granted directory."""
    found, _ = run
    assert found["report"] == "exited with 0"
    assert found["table"]["E01-read-etc-passwd"] == "ENOENT"
    assert found["table"]["E01-read-a-file-beside-the-grant"] == "ENOENT"


def test_there_are_enough_attempts() -> None:
    """Those of one cage alone, each made as root and as an ordinary user, under both profiles."""
    assert len(set(NAMES)) >= 300
