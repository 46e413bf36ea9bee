"""The official MCP SDK in a folder of its own, and a server of plugins that is made with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SDK = "mcp==2.3.0"
FRAMEWORK = "cpex==0.1.4"
BUILD = Path(__file__).parents[2] / "build"
SERVER = Path(__file__).parents[1] / "guests" / "mcp_plugin_server.py"


def install(package: str = SDK) -> Path:
    """Install a package with what it needs into a folder of its own; once."""
    BUILD.mkdir(exist_ok=True)
    folder = BUILD / f"guest-{package.partition('=')[0]}"
    with (BUILD / f"{folder.name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "installed.txt"
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == package:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), package],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{package} cannot be installed:\n{done.stderr}"
        stamp.write_text(package, encoding="utf-8")
    return folder


def server_table(**more: Any) -> dict[str, Any]:
    """Describe a server of pipeline plugins, as an entry's `mcp` table does."""
    sdk = install()
    return {
        "proto": "STDIO",
        "cmd": [os.path.realpath(sys.executable), str(SERVER)],
        "env": {"PYTHONPATH": str(sdk), "GIVEN": "yes", **more.pop("env", {})},
        "cage": {"read": [str(sdk), str(SERVER)]},
        **more,
    }


def framework_table(folder: Path) -> dict[str, Any]:
    """Describe the published framework's own plugin server, with `config.yaml` in `folder`."""
    published = install(FRAMEWORK)
    return {
        "cmd": [
            os.path.realpath(sys.executable),
            "-m",
            "cpex.framework.external.mcp.server.runtime",
        ],
        "cwd": str(folder),
        "env": {
            "PYTHONPATH": f"{folder}:{published}",
            "PLUGINS_CONFIG_PATH": str(folder / "config.yaml"),
            "PLUGINS_TRANSPORT": "stdio",
        },
        "cage": {"read": [str(folder), str(published)], "memory_mb": 2048},
    }
