"""`Commands`: what a person types in the folder of a loaded project, on a shared daemon."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

from fakes.running_daemon import DaemonProcess, kaged, make_project

_numbers = itertools.count(1)


class Commands:
    """The commands of one user, in the folder of one loaded project."""

    def __init__(self, daemon: DaemonProcess, root: Path, project_id: str, slug: str) -> None:
        self.daemon = daemon
        self.home = daemon.home
        self.root = root
        self.project_id = project_id
        self.slug = slug

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command, whatever comes of it."""
        return kaged(self.home, *arguments, cwd=self.root)

    def said(self, *arguments: str, expect: int = 0) -> str:
        """Run a command and return everything that it printed."""
        done = self.run(*arguments)
        assert done.returncode == expect, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def json(self, *arguments: str, expect: int = 0) -> Any:
        """Run a command and return its answer, or its error where it has to fail."""
        done = self.run(*arguments, "--json")
        assert done.returncode == expect, (arguments, done.stdout, done.stderr)
        return json.loads(done.stdout or done.stderr)


def load_project(daemon: DaemonProcess, root: Path, text: str | None = None) -> Commands:
    """Load a project under a slug that no other test uses; SLUG in `text` stands for it."""
    slug = f"sample{next(_numbers)}"
    plain = "version: 1\nproject: SLUG\nprimary: {model: default, system_prompt: You help.}\n"
    make_project(root, (text or plain).replace("SLUG", slug))
    with daemon.client() as client:
        answer = client.post("/projects", json={"root": str(root), "trust": True})
    assert answer.status_code == 201, answer.text
    return Commands(daemon, root, answer.json()["id"], slug)


__all__ = ["Commands", "load_project"]
