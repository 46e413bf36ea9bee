"""`PluginTablesPort`: the tables that plugins own in the daemon's database, for uninstalling.

A plugin's tables go last, after its removal is in the journal and in the audit log: a crash before
leaves them to the plugin, a crash after is finished at the next start.
"""

from __future__ import annotations

from typing import Protocol


class PluginTablesPort(Protocol):
    """The broker of plugins' tables."""

    def tables_of(self, plugin: str) -> list[str]:
        """Return the names of a plugin's tables, as the plugin knows them."""
        ...

    async def drop(self, plugin: str) -> list[str]:
        """Drop every table of a plugin and return their names; none are left to drop twice."""
        ...
