"""The official MCP SDK in a folder of its own, and a server of plugins that is made with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parents[2] / "build" / "cpex-framework"
SERVER = Path(__file__).parents[1] / "guests" / "mcp_plugin_server.py"


def published() -> Path:
    """Return the folder into which scripts/setup has put the framework and the SDK."""
    assert PUBLISHED.is_dir(), "cpex-framework is missing: run scripts/setup --tests"
    return PUBLISHED


def server_table(**more: Any) -> dict[str, Any]:
    """Describe a server of pipeline plugins, as an entry's `mcp` table does."""
    sdk = published()
    return {
        "proto": "STDIO",
        "cmd": [os.path.realpath(sys.executable), str(SERVER)],
        "env": {"PYTHONPATH": str(sdk), "GIVEN": "yes", **more.pop("env", {})},
        "cage": {"read": [str(sdk), str(SERVER)]},
        **more,
    }


def framework_table(folder: Path) -> dict[str, Any]:
    """Describe the published framework's own plugin server, with `config.yaml` in `folder`."""
    packages = published()
    return {
        "cmd": [
            os.path.realpath(sys.executable),
            "-m",
            "cpex.framework.external.mcp.server.runtime",
        ],
        "cwd": str(folder),
        "env": {
            "PYTHONPATH": f"{folder}:{packages}",
            "PLUGINS_CONFIG_PATH": str(folder / "config.yaml"),
            "PLUGINS_TRANSPORT": "stdio",
        },
        "cage": {"read": [str(folder), str(packages)], "memory_mb": 2048},
    }
