"""Plugins' own tables: `StorageBroker`, `StorageQuota`, `Rewritten` statements, exports.

request → gate (which statements at all) → rewrite (names of the plugin's own schema, remembered)
→ store.plugin_tables (SQLite's guard, limits, transaction) → answer without a trace of the prefix
"""

from kaged.plugins.storage.broker import StorageBroker
from kaged.plugins.storage.export import StorageExport
from kaged.plugins.storage.quota import StorageQuota

__all__ = ["StorageBroker", "StorageExport", "StorageQuota"]
