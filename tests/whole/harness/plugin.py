"""`PluginFolder`: a plugin's own folder, which the daemon is given like anybody's.

Its program is `tests/guests/stub_plugin.py`: the standard library and nothing else; `behaviour`
tells it what to do, good or bad.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from whole.harness.daemon import Daemon

STUB = Path(__file__).parents[2] / "guests" / "stub_plugin.py"
MANIFEST: dict[str, Any] = {
    "name": "stub",
    "version": "1.0.0",
    "kaged_api": 1,
    "description": "A plugin that does what the test says.",
    "command": ["/usr/bin/env", "python3", "./main.py"],
    "capabilities": [],
    "methods": ["a.b", "c.d"],
}


class PluginFolder:
    """A plugin's folder and, once installed, the plugin by HTTP."""

    def __init__(
        self,
        daemon: Daemon,
        root: Path,
        behaviour: Mapping[str, Any] | None = None,
        **manifest: Any,
    ) -> None:
        self.daemon = daemon
        self.root = root
        self.manifest: dict[str, Any] = {}
        self.write(behaviour, **manifest)

    @property
    def name(self) -> str:
        """Its name, as the manifest says."""
        return str(self.manifest["name"])

    def write(self, behaviour: Mapping[str, Any] | None = None, **manifest: Any) -> None:
        """Write its files; a member of the manifest that is None is left out."""
        merged = {**MANIFEST, **manifest}
        self.manifest = {key: value for key, value in merged.items() if value is not None}
        wanted = dict(behaviour or {})
        told = {key: self.manifest.get(key) for key in ("name", "version", "methods")}
        wanted["answer"] = {**told, **wanted.get("answer", {})}
        self.root.mkdir(parents=True, exist_ok=True)
        shutil.copy(STUB, self.root / "main.py")
        (self.root / "behaviour.json").write_text(json.dumps(wanted), encoding="utf-8")
        text = yaml.safe_dump(self.manifest, sort_keys=False)
        (self.root / "kaged-plugin.yaml").write_text(text, encoding="utf-8")

    def install(self) -> dict[str, Any]:
        """Look at it and install exactly that."""
        shown = self.daemon.post("/plugins/preview", {"path": str(self.root)})
        body = {"path": str(self.root), "digest": shown["digest"]}
        got: dict[str, Any] = self.daemon.post("/plugins", body)
        return got

    def run(self) -> dict[str, Any]:
        """Install and enable it; returns its state."""
        self.install()
        got: dict[str, Any] = self.daemon.post(f"/plugins/{self.name}/enable")
        return got

    def state(self) -> dict[str, Any]:
        """Return what the daemon tells about it."""
        got: dict[str, Any] = self.daemon.get(f"/plugins/{self.name}")
        return got

    def call(self, method: str = "a.b", **params: Any) -> Any:
        """Call a method that has to work; returns its result."""
        return self.daemon.post(f"/plugins/{self.name}/call/{method}", params)["result"]

    def fail(self, method: str = "a.b", **params: Any) -> dict[str, Any]:
        """Call a method that has to fail; returns the error."""
        return self.daemon.error("POST", f"/plugins/{self.name}/call/{method}", params)

    def audit(self, *events: str) -> list[dict[str, Any]]:
        """Return the audit rows of these events that are about it, oldest first."""
        rows = self.daemon.audit(*events)
        return [one for one in rows if self.name in json.dumps(one)]
