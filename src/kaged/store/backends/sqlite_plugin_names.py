"""`PluginNameRegistry`: which name in the database is which plugin's, checked against the catalog.

A statement that changes the schema is judged twice: by the names it is said to use, and by what
it did. The second look compares SQLite's catalog before and after, inside the transaction: what
appeared or vanished must be the plugin's own, or all of it is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends.sqlite_guest import GuestConnection
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.guest import Claim, FaultKind, GuestFault, NameKind

_COUNTERS = "sqlite_sequence"  # SQLite makes it with the first AUTOINCREMENT
_AUTO_INDEX = "sqlite_autoindex_"

# Folded name to kind and folded name of its table, as in SQLite's catalog.
Catalog = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class OwnedName:
    """One name in the database and whose it is. `plain` is as the plugin says it."""

    physical: str
    plugin: str
    plain: str
    kind: NameKind


@dataclass(slots=True)
class NameChange:
    """What one statement did to the names of a plugin."""

    added: list[OwnedName] = field(default_factory=list[OwnedName])
    removed: list[OwnedName] = field(default_factory=list[OwnedName])


class PluginNameRegistry:
    """The names of all plugins. Changed in the writer's thread only; may be read in any."""

    def __init__(self) -> None:
        self.names: dict[str, OwnedName] = {}
        self._owned: dict[str, set[str]] = {}

    def fill(self, names: Iterable[OwnedName]) -> None:
        """Take over what is recorded."""
        for name in names:
            self._add(name)

    def owned(self, plugin: str) -> set[str]:
        """Return the live set of a plugin's names, for its guards."""
        return self._owned.setdefault(plugin, set())

    def apply(self, change: NameChange) -> None:
        """Note what a statement did."""
        for name in change.removed:
            self._remove(name)
        for name in change.added:
            self._add(name)

    def revert(self, change: NameChange) -> None:
        """Forget what a statement did, because it was undone."""
        for name in change.added:
            self._remove(name)
        for name in change.removed:
            self._add(name)

    def require_free(self, plugin: str, names: Iterable[str]) -> None:
        """Refuse names that belong to another plugin (PH-AMB-31).

        Raises:
            GuestFault: one does.
        """
        for name in names:
            owner = self.names.get(name)
            if owner is not None and owner.plugin != plugin:
                raise _taken(name)

    def require_claimable(self, plugin: str, claims: Iterable[Claim], before: Catalog) -> None:
        """Refuse claims on names that are another's, or that exist and are the host's.

        Raises:
            GuestFault: one is.
        """
        owned = self.owned(plugin)
        for claim in claims:
            self.require_free(plugin, (claim.physical,))
            if claim.physical in before and claim.physical not in owned:
                raise _taken(claim.physical)

    def compare(
        self, plugin: str, claims: Iterable[Claim], before: Catalog, after: Catalog
    ) -> NameChange:
        """Return what a statement did to the plugin's names.

        Raises:
            GuestFault: it did something to a name that is not the plugin's.
        """
        owned = self.owned(plugin)
        claimed = {claim.physical: claim for claim in claims}
        mine = owned | {
            name for name, claim in claimed.items() if claim.kind is not NameKind.RESERVED
        }
        change = NameChange()
        for name, entry in before.items():
            if after.get(name) != entry:
                _require_mine(name, entry, owned)
                if name in self.names:
                    change.removed.append(self.names[name])
        for name, entry in after.items():
            if before.get(name) != entry:
                _require_mine(name, entry, mine)
                said = claimed.get(name) or self.names.get(name)
                if said is not None:
                    change.added.append(OwnedName(name, plugin, said.plain, NameKind(entry[0])))
        self._keep_reserved(plugin, claimed.values(), change)
        return change

    def _keep_reserved(self, plugin: str, claims: Iterable[Claim], change: NameChange) -> None:
        added = {name.physical for name in change.added}
        removed = {name.physical for name in change.removed}
        # Reserved by a foreign key before, made now.
        change.removed += [self.names[name] for name in (added & self.names.keys()) - removed]
        known = added | self.owned(plugin)
        change.added += [
            OwnedName(claim.physical, plugin, claim.plain, NameKind.RESERVED)
            for claim in claims
            if claim.kind is NameKind.RESERVED and claim.physical not in known
        ]

    def _add(self, name: OwnedName) -> None:
        self.names[name.physical] = name
        self.owned(name.plugin).add(name.physical)

    def _remove(self, name: OwnedName) -> None:
        self.names.pop(name.physical, None)
        self.owned(name.plugin).discard(name.physical)


def read_catalog(conn: GuestConnection) -> Catalog:
    """Read what the database holds now."""
    rows = conn.host("SELECT type, name, tbl_name FROM sqlite_master")
    return {_text(name): (_text(kind), _text(table)) for kind, name, table in rows}


def require_own_parents(conn: GuestConnection, owned: set[str], tables: Iterable[str]) -> None:
    """Refuse foreign keys that lead out of the plugin's own tables.

    Raises:
        GuestFault: one does.
    """
    for table in tables:
        for row in conn.host('SELECT "table" FROM pragma_foreign_key_list(?)', table):
            if _text(row[0]) not in owned:
                raise GuestFault(
                    FaultKind.DENIED, "a foreign key refers to a table of another owner", name=table
                )


def record_names(conn: GuestConnection, change: NameChange, now_ms: int) -> None:
    """Write what a statement did to the names, in its own transaction."""
    for name in change.removed:
        conn.host("DELETE FROM kaged_plugin_names WHERE physical = ?", name.physical)
    for name in change.added:
        conn.host(
            "INSERT INTO kaged_plugin_names (physical, plugin, plain, kind, created_at_ms) "
            "VALUES (?, ?, ?, ?, ?)",
            name.physical,
            name.plugin,
            name.plain,
            name.kind.value,
            now_ms,
        )


def read_usage(conn: GuestConnection, plugin: str) -> int:
    """Return how many bytes a plugin's tables took at the end of its last transaction."""
    rows = conn.host("SELECT bytes FROM kaged_plugin_usage WHERE plugin = ?", plugin)
    return int(rows[0][0]) if rows else 0


def record_usage(conn: GuestConnection, plugin: str, used_bytes: int) -> None:
    """Keep how many bytes a plugin's tables take."""
    conn.host(
        "INSERT INTO kaged_plugin_usage (plugin, bytes) VALUES (?, ?) "
        "ON CONFLICT (plugin) DO UPDATE SET bytes = excluded.bytes",
        plugin,
        max(0, used_bytes),
    )


def drop_names(conn: GuestConnection, names: Iterable[OwnedName], plugin: str) -> None:
    """Drop a plugin's tables, with their indexes, and every record of it."""
    for name in names:
        if name.kind is NameKind.TABLE:
            conn.host(f"DROP TABLE IF EXISTS {_quoted(name.physical)}")
    conn.host("DELETE FROM kaged_plugin_names WHERE plugin = ?", plugin)
    conn.host("DELETE FROM kaged_plugin_usage WHERE plugin = ?", plugin)


def rename_owner(
    conn: GuestConnection,
    change: NameChange,
    rename_index: Callable[[str, OwnedName, OwnedName], str],
) -> None:
    """Rename what `change` removes to what it adds, one for one; rows stay where they are.

    `rename_index` returns an index's statement with its new name; SQLite renames tables only.
    """
    pairs = [*zip(change.removed, change.added, strict=True)]
    catalog = read_catalog(conn)
    for old, new in pairs:
        missing = old.physical not in catalog
        if old.kind is NameKind.INDEX or (missing and old.kind is NameKind.TABLE):
            continue
        if missing:  # a foreign key names it: renamed with a table that is there for a moment
            conn.host(f"CREATE TABLE {_quoted(old.physical)} (a)")
        conn.host(f"ALTER TABLE {_quoted(old.physical)} RENAME TO {_quoted(new.physical)}")
        if missing:
            conn.host(f"DROP TABLE {_quoted(new.physical)}")
    statements = {
        _text(name): sql.decode("utf-8", "surrogateescape")
        for name, sql in conn.host("SELECT name, sql FROM sqlite_master WHERE type = 'index'")
        if sql is not None
    }
    for old, new in pairs:
        if old.kind is NameKind.INDEX and old.physical in statements:
            conn.host(f"DROP INDEX {_quoted(old.physical)}")
            conn.host(rename_index(statements[old.physical], old, new))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require_mine(name: str, entry: tuple[str, str], mine: set[str]) -> None:
    kind, table = entry
    if kind == "table" and (name in mine or name == _COUNTERS):
        return
    if kind == "index" and table in mine and (name in mine or name.startswith(_AUTO_INDEX)):
        return
    raise GuestFault(FaultKind.DENIED, f"{kind} {name}", name=name)


def _taken(name: str) -> GuestFault:
    return GuestFault(FaultKind.DENIED, "the name belongs to another plugin", name=name)


def _text(raw: bytes) -> str:
    return fold_name(raw.decode("utf-8", "replace"))
