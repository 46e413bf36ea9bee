"""`Relay`: a plugin that asks the host what a test tells it to, and returns the host's answer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.plugin import PluginFolder

RELAY = Path(__file__).parents[2] / "guests" / "relay_plugin.py"
METHODS = ["relay.ask", "relay.together", "relay.files"]


class Relay:
    """A running relay; its requests are those of a plugin over its own wire."""

    def __init__(self, daemon: Daemon, root: Path, name: str, *capabilities: str) -> None:
        self.folder = PluginFolder(
            daemon, root / name, name=name, methods=METHODS, capabilities=list(capabilities)
        )
        shutil.copy(RELAY, self.folder.root / "main.py")
        (self.folder.root / "version.txt").write_text("1.0.0", encoding="utf-8")
        state = self.folder.run()
        assert state["state"] == "running", state

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Let it ask the host; returns `{"result": …}` or `{"error": …}`."""
        got: dict[str, Any] = self.folder.call("relay.ask", ask=method, given=params)
        return got

    def together(self, *requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Let it send several requests at once."""
        got: list[dict[str, Any]] = self.folder.call(
            "relay.together", requests=[list(one) for one in requests]
        )
        return got

    def query(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """Run a SELECT that has to work; returns its rows."""
        got = self.ask("kaged.storage.query", sql=sql, params=list(params))
        assert "result" in got, (sql, got)
        rows: list[dict[str, Any]] = got["result"]["rows"]
        return rows

    def exec(self, sql: str, *params: Any) -> int:
        """Run a statement that has to work; returns the rows that it touched."""
        got = self.ask("kaged.storage.exec", sql=sql, params=list(params))
        assert "result" in got, (sql, got)
        return int(got["result"]["rows_affected"])

    def refused(self, sql: str, *params: Any, method: str = "exec") -> dict[str, Any]:
        """Run a statement that has to fail; returns the error."""
        got = self.ask(f"kaged.storage.{method}", sql=sql, params=list(params))
        assert "error" in got, (sql, got)
        error: dict[str, Any] = got["error"]
        return error

    def tables(self) -> Sequence[str]:
        """Return the names of its tables, as the host lists them."""
        got = self.ask("kaged.storage.schema")
        tables: Sequence[str] = got["result"]["tables"]
        return tables
