"""`Guest`: a plugin whose program the test writes, with a diary of what the host sent it.

The diary is a file outside the plugin's folder that the plugin may write (`write:fs:…`), so what
reached the plugin is read from what the plugin itself put down.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon, wait_for
from whole.harness.plugin import PluginFolder

KIT = Path(__file__).parents[2] / "guests" / "plugin_kit.py"
PYTHON = ["/usr/bin/env", "python3", "./main.py"]
STORAGE = ["kaged:storage:read", "kaged:storage:write"]
_numbers = itertools.count(1)


class Guest(PluginFolder):
    """A plugin that writes down what it hears. `program` is its `main.py`, else it is a stub."""

    def __init__(
        self,
        daemon: Daemon,
        below: Path,
        program: str | Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
        **manifest: Any,
    ) -> None:
        name = str(manifest.pop("name", f"guest-{next(_numbers)}"))
        self.shared = below / f"{name}-shared"
        self.shared.mkdir(parents=True, exist_ok=True)
        self.diary = self.shared / "diary"
        self.files = files or {}
        capabilities = [*manifest.pop("capabilities", []), f"write:fs:{self.shared}"]
        methods = manifest.pop("methods", ["a.b", "c.d"])
        env = {"DIARY": str(self.diary), "METHODS": ",".join(methods or [])}
        env.update(manifest.pop("env", {}))
        behaviour: dict[str, Any] = {"log": str(self.diary)}
        if isinstance(program, Mapping):
            behaviour.update(program)
        self.program = program if isinstance(program, str) else None
        super().__init__(
            daemon,
            below / name,
            behaviour,
            name=name,
            capabilities=capabilities,
            methods=methods,
            env=env,
            **manifest,
        )

    def write(self, behaviour: Mapping[str, Any] | None = None, **manifest: Any) -> None:
        """Write its files; a program of the test's own takes the stub's place."""
        super().write(behaviour, **manifest)
        if self.program is not None:
            shutil.copy(KIT, self.root / "kit.py")
            (self.root / "main.py").write_text(self.program, encoding="utf-8")
        for name, text in self.files.items():
            path = self.root / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)

    @property
    def stored(self) -> Path:
        """Where the daemon keeps the installed files."""
        return self.daemon.home / "plugins" / self.name

    # -- what reached it -----------------------------------------------------------------------

    def heard_bytes(self) -> bytes:
        """Return what it read from its standard input, byte for byte."""
        return self.diary.read_bytes() if self.diary.exists() else b""

    def heard(self, method: str | None = None) -> list[dict[str, Any]]:
        """Return the messages it received, all or those of a method, oldest first."""
        whole_lines = self.heard_bytes().split(b"\n")[:-1]
        messages = [json.loads(line) for line in whole_lines]
        return [one for one in messages if method is None or one.get("method") == method]

    def await_heard(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it received a method so often."""
        wait_for(lambda: len(self.heard(method)) >= count, f"{method} at {self.name}")
        return self.heard(method)

    def await_state(self, *states: str) -> dict[str, Any]:
        """Wait until the daemon tells one of these states."""
        return wait_for(
            lambda: found if (found := self.state())["state"] in states else {},
            f"{self.name} {states}",
        )

    def rows(self, *events: str) -> list[dict[str, Any]]:
        """Return the data of the audit rows of these events about it, oldest first."""
        found = self.daemon.audit(*events, text=f'"{self.name}"')
        return [one["data"] for one in found if one["data"].get("name") == self.name]

    def events(self) -> list[str]:
        """Return the names of all audit rows `plugin.*` about it, oldest first."""
        found = self.daemon.audit("plugin.*", text=f'"{self.name}"')
        return [one["event"] for one in found if one["data"].get("name") == self.name]

    def await_rows(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many audit rows of an event are about it."""
        return wait_for(
            lambda: found if len(found := self.rows(event)) >= count else [], f"{event} {self.name}"
        )

    def logged(self, event: str) -> list[str]:
        """Return the daemon's log lines of an event that name it."""
        return [
            line for line in self.daemon.log().splitlines() if event in line and self.name in line
        ]
