"""The linter knows every way in which Python starts a process past the one spawner."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
STARTS = re.compile(r"exec|fork|posix_spawn|spawn[lv]|popen|system$")


def test_every_function_of_os_that_starts_a_process_is_banned() -> None:
    lint = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    banned = lint["flake8-tidy-imports"]["banned-api"]
    starts = {f"os.{name}" for name in dir(os) if STARTS.match(name)}
    assert {"os.fork", "os.execve", "os.spawnv", "os.posix_spawnp", "os.system"} <= starts
    assert starts | {"pty.fork", "pty.spawn"} <= set(banned)


def test_every_exception_in_the_product_says_why() -> None:
    """There are six: four in the helpers of cages, the daemon's own start, one inside a cage."""
    source = PYPROJECT.parent / "src" / "kaged"
    allowed = [
        (path.relative_to(source).as_posix(), line)
        for path in sorted(source.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "TID251" in line and re.search(r"\bos\.(exec|fork|posix_spawn)", line)
    ]
    assert [path for path, _ in allowed] == [
        "cage/launcher_main.py",
        "cage/net/nsworker.py",
        "cage/setup_helper_main.py",
        "cli/launch.py",
        "sdk/http_request.py",
        "toolbox/dap/adapter_relay.py",
    ]
    assert all(re.search(r"TID251 - \w", line) for _, line in allowed)
