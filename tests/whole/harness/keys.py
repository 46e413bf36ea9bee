"""A daemon with credentials of its operator, and projects whose agents ask for them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon, wait_for
from whole.harness.project import Project

VALUE = "ghp_Th1sIsTheValueThatNobodyInACageSees"
CONFIG = """\
[credentials.github]
hosts = ["github.example", "api.github.example:8443"]
place = ["bearer", "basic:x-access-token"]
rules = ["GET /repos/**"]
as = { env = ["GITHUB_TOKEN", "GH_TOKEN"], files = ["netrc", "npmrc", "pip", "git-credentials"] }
for = { projects = ["shop", "other"], agents = ["primary", "primary.subagents.coder"] }
"""
LOCAL = '[credentials.github]\nvalue = "${GITHUB_VALUE}"\n'


class Keys:
    """A daemon, and ways to change its operator's files."""

    def __init__(self, daemon: Daemon, local: str, folder: Path) -> None:
        self.daemon = daemon
        self._local = local
        self._folder = folder

    def configure(self, config: str, local: str = LOCAL) -> None:
        """Write the operator's files anew and wait until the daemon has read them."""
        before = len(self.daemon.audit("daemon.config_reloaded"))
        self.daemon.write("config.toml", '[daemon]\nbind = "127.0.0.1:0"\n' + config)
        self.daemon.write("local.toml", self._local + local)
        os.kill(self.daemon.pid, signal.SIGHUP)
        wait_for(lambda: len(self.daemon.audit("daemon.config_reloaded")) > before)

    def project(self, name: str, *asked: str, **primary: Any) -> Project:
        """Return a loaded project whose agents ask for these credentials."""
        cage = {
            "fs": [{"mode": "rw", "path": "."}],
            "capabilities": ["shell"],
            "credentials": list(asked),
        }
        agent = {"model": "default", "system_prompt": "x", "cage": cage, "tools": {"shell.*": ON}}
        subagents = {"coder": agent, "reader": agent}
        root = self._folder / name
        return self.daemon.load(Project(root, cage=cage, subagents=subagents, **primary))


ON = {"enabled": True}


def out(project: Project, command: str, agent: str = "primary") -> str:
    """Run a command of an agent; returns what it printed."""
    return str(project.call("shell.bash", agent, command=command)["stdout"])
