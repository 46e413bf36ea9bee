"""`PluginSchema`: the names of one plugin's tables, as the plugin says them and as they are."""

from __future__ import annotations

from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.guest import Claim, NameKind
from kaged.store.plugin_tables import HOST_TABLES
from kaged.wire.errors import InvalidParams, StorageAccessDenied

NAME_LIMIT_CHARS = 128
# What SQLite, other plugins and the host keep for themselves, whether such a table exists or not.
RESERVED_BEGINNINGS = ("sqlite_", "plugin_", "pragma_")
# Tables that the host or SQLite has; a plugin that has one of that name means its own.
OUTSIDE_TABLES = HOST_TABLES | {"bytecode", "dbstat", "fsdir", "tables_used"}


@dataclass(frozen=True, slots=True)
class PluginSchema:
    """The logical schema of one plugin inside the host's database (PH-STOR-02)."""

    plugin: str
    prefix: str

    @classmethod
    def of(cls, plugin: str) -> PluginSchema:
        """Return the schema of a plugin; different plugins have different prefixes."""
        return cls(plugin, f"plugin_{plugin.replace('-', '_')}_")

    def physical(self, plain: str) -> str:
        """Return the name in the database for a name that the plugin used.

        Raises:
            StorageAccessDenied: the name is not one that a plugin may use.
            InvalidParams: it is too long.
        """
        folded = fold_name(plain)
        if folded.startswith(RESERVED_BEGINNINGS):
            raise outside(plain)
        if not 0 < len(plain) <= NAME_LIMIT_CHARS:
            raise InvalidParams(f"table names have 1 to {NAME_LIMIT_CHARS} characters")
        return self.prefix + plain

    def claim(self, plain: str, kind: NameKind) -> Claim:
        """Return the claim to a name of this schema; raises as `physical` does."""
        return Claim(fold_name(self.physical(plain)), plain, kind)

    def hide(self, text: str) -> str:
        """Take the prefix out of a message, however it is written."""
        folded = fold_name(text)
        shown: list[str] = []
        position = 0
        while (found := folded.find(self.prefix, position)) >= 0:
            shown.append(text[position:found])
            position = found + len(self.prefix)
        return "".join((*shown, text[position:]))


def outside(table: str) -> StorageAccessDenied:
    """Make the error for a table that is not the plugin's."""
    return StorageAccessDenied(
        f"{table[:NAME_LIMIT_CHARS]!r} is not a table of this plugin",
        detail={"table": table[:NAME_LIMIT_CHARS]},
    )


def quoted(name: str) -> str:
    """Write a name so that SQLite reads exactly it."""
    return '"' + name.replace('"', '""') + '"'
