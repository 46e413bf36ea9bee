"""What the store says about a plugin's folder before anything of it is kept, and where it is kept.

A preview is a reading of the manifest: every problem with its path, every warning. A refused one
must leave no trace: no folder, no line in the operator's files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.plugin import MANIFEST, PluginFolder

NO_DIGEST = "0" * 64
BASE = {key: MANIFEST[key] for key in MANIFEST if key != "methods"}
TOOL = {
    "name": "retain",
    "description": "Keeps a text.",
    "parameters_schema": {
        "type": "object",
        "properties": {"content": {"type": "string"}},
        "required": ["content"],
    },
}


def manifest_folder(root: Path, text: str) -> Path:
    """Write a folder with this manifest and a program that would do nothing good."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "kaged-plugin.yaml").write_text(text, encoding="utf-8")
    (root / "main.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    return root


def as_json(**changes: Any) -> str:
    """Return a manifest (JSON is YAML) with these changes; None leaves a key out."""
    merged = {**BASE, **changes}
    return json.dumps({key: value for key, value in merged.items() if value is not None})


def preview(daemon: Daemon, root: Path) -> dict[str, Any]:
    """Return what installing the folder would mean."""
    got: dict[str, Any] = daemon.post("/plugins/preview", {"path": str(root)})
    return got


def refusal(daemon: Daemon, root: Path) -> dict[str, Any]:
    """Return why a folder is refused: looked at, and installed without having been looked at."""
    before = kept(daemon)
    shown = daemon.error("POST", "/plugins/preview", {"path": str(root)})
    again = daemon.error("POST", "/plugins", {"path": str(root), "digest": NO_DIGEST})
    assert again["code"] == shown["code"], (shown, again)
    assert kept(daemon) == before
    return shown


def problems(daemon: Daemon, root: Path) -> list[tuple[str, str]]:
    """Return the path and code of each error that makes the daemon refuse the folder."""
    refused = refusal(daemon, root)
    found: Sequence[Mapping[str, Any]] = refused["data"]["problems"]
    return [(one["key_path"], one["code"]) for one in found if one["severity"] == "error"]


def kept(daemon: Daemon) -> tuple[list[str], str, str]:
    """Return the store's folders and the operator's two files."""
    store = daemon.home / "plugins"
    names = sorted(one.name for one in store.iterdir()) if store.exists() else []
    files = [daemon.home / name for name in ("local.toml", "config.toml")]
    local, config = [one.read_text(encoding="utf-8") if one.exists() else "" for one in files]
    return [name for name in names if not name.startswith(".")], local, config


class Ear:
    """A file into which a stub writes every line that it is sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "lines"

    @property
    def capability(self) -> str:
        """What lets the stub write it."""
        return f"write:fs:{self.folder}"

    def lines(self) -> list[dict[str, Any]]:
        """Return everything it was sent, oldest first."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line]

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the messages with this method."""
        return [one for one in self.lines() if one.get("method") == method]

    def params(self, method: str) -> list[dict[str, Any]]:
        """Return the params of the messages with this method."""
        return [one.get("params", {}) for one in self.of(method)]

    def configs(self) -> list[dict[str, Any]]:
        """Return the configs that it was given, oldest first."""
        return [one["config"] for one in self.params("config.update")]

    def forget(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)


def heard(plugin: PluginFolder, behaviour: Mapping[str, Any], **manifest: Any) -> Ear:
    """Write a plugin again so that what it hears can be read; returns the ear."""
    ear = Ear(plugin.root.parent / f"{plugin.name}-ear")
    capabilities = [*manifest.pop("capabilities", []), ear.capability]
    named = {"name": plugin.name, **manifest, "capabilities": capabilities}
    plugin.write({**behaviour, "log": str(ear.path)}, **named)
    return ear
