"""A plugin store in a folder of its own, and plugin directories to install from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from fakes.audit_sink import MemorySink
from kaged.audit import AuditLog, AuditRow, ChainKey
from kaged.base import Clock, Ids, SystemClock
from kaged.plugins.installation import PluginStore, PluginTablesPort

MANIFEST: dict[str, Any] = {
    "name": "sample",
    "version": "1.0.0",
    "kaged_api": 1,
    "description": "A plugin to install.",
    "command": ["/usr/bin/env", "python3", "./main.py"],
    "capabilities": ["read:fs:/opt/sample"],
}


def write_plugin(directory: Path, files: dict[str, str] | None = None, **manifest: Any) -> Path:
    """Write a plugin's directory; a manifest field of None is left out."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = {**MANIFEST, **manifest}
    data = {key: value for key, value in fields.items() if value is not None}
    (directory / "kaged-plugin.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    for name, text in {"main.py": "print('hello')\n", **(files or {})}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


class StoreLab:
    """A store with its two files of the operator's, and the audit events it caused."""

    def __init__(
        self, root: Path, clock: Clock | None = None, tables: PluginTablesPort | None = None
    ) -> None:
        self.root = root
        self.tables = tables
        self.directory = root / "plugins"
        self.local_toml = root / "local.toml"
        self.config_toml = root / "config.toml"
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._clock = clock or SystemClock()
        self.audit: AuditLog
        self.store: PluginStore

    async def open(self) -> None:
        ids = Ids(self._clock)
        self.audit = await AuditLog.open(
            MemorySink(), clock=self._clock, ids=ids, key=ChainKey(b"k" * 32)
        )
        self.audit.subscribe(self._row)
        self.store = PluginStore(
            self.directory,
            data_dir=self.root / "data",
            local_toml=self.local_toml,
            config_toml=self.config_toml,
            audit=self.audit,
            clock=self._clock,
            ids=ids,
            tables=self.tables,
        )

    async def close(self) -> None:
        await self.audit.close()

    async def seen(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        await self.audit.flush()
        return [event for event in self.events if not names or event[0] in names]

    async def install(self, path: Path, **rest: Any) -> None:
        """Agree to whatever the store shows."""
        prompt = await self.store.prepare(path)
        await self.store.install(path, prompt.digest, **rest)

    def names(self) -> list[str]:
        """Return the plugins whose directories people can see."""
        if not self.directory.exists():
            return []
        return sorted(p.name for p in self.directory.iterdir() if not p.name.startswith("."))

    def stale_files(self) -> list[Path]:
        """Return what the store keeps of unfinished work."""
        private = self.directory / ".kaged"
        found = [*private.glob("staging/*"), *private.glob("retired/*"), *private.glob("*.json")]
        return sorted(found)

    def local(self) -> str:
        return self.local_toml.read_text(encoding="utf-8") if self.local_toml.exists() else ""

    def _row(self, row: AuditRow) -> None:
        self.events.append((row.name, json.loads(row.data_json)))


def tree(directory: Path) -> dict[str, str]:
    """Return every file of a directory with its text."""
    return {
        str(path.relative_to(directory)): path.read_text(encoding="utf-8")
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
