"""`SqlGuard`: what one plugin's statement may touch, asked by SQLite itself while it compiles it.

SQLite calls the guard (its authorizer) for every table, column, function and kind of action that
a statement needs, whatever the statement looks like. The guard knows the names that the plugin
owns; everything else is denied, so that a statement which fooled the rewriter still finds nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import lru_cache

from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends.sqlite_words import fold_name, leading_words

VALUE_LIMIT_BYTES = 1024 * 1024  # one value, and one row
_SHORT_CHARS = 8 * 1024  # what verbs are remembered of

# Pure and quick built-in functions. Not in the list, so denied: everything that loads, logs, looks
# at pages or modules, and json_patch, whose time grows with the square of its input.
FUNCTIONS = frozenset({
    "->", "->>", "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "avg",
    "ceil", "ceiling", "changes", "char", "coalesce", "concat", "concat_ws", "cos", "cosh",
    "count", "cume_dist", "current_date", "current_time", "current_timestamp", "date",
    "datetime", "degrees", "dense_rank", "exp", "first_value", "floor", "format", "glob",
    "group_concat", "hex", "if", "ifnull", "iif", "instr", "json", "json_array",
    "json_array_length", "json_error_position", "json_extract", "json_group_array",
    "json_group_object", "json_insert", "json_object", "json_pretty", "json_quote",
    "json_remove", "json_replace", "json_set", "json_type", "json_valid", "julianday", "lag",
    "last_insert_rowid", "last_value", "lead", "length", "like", "likelihood", "likely", "ln",
    "log", "log10", "log2", "lower", "ltrim", "max", "median", "min", "mod", "nth_value",
    "ntile", "nullif", "octet_length", "percent_rank", "pi", "pow", "power", "printf", "quote",
    "radians", "random", "randomblob", "rank", "replace", "round", "row_number", "rtrim",
    "sign", "sin", "sinh", "soundex", "sqlite_version", "sqrt", "strftime", "string_agg",
    "substr", "substring", "sum", "tan", "tanh", "time", "timediff", "total", "total_changes",
    "trim", "trunc", "typeof", "unhex", "unicode", "unixepoch", "unlikely", "upper", "zeroblob",
})  # fmt: skip
TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})  # they read nothing but their argument
_ALTER_FUNCTIONS = frozenset(
    {
        "sqlite_drop_column",
        "sqlite_rename_column",
        "sqlite_rename_quotefix",
        "sqlite_rename_table",
        "sqlite_rename_test",
    }
)
_CATALOG = frozenset({"sqlite_master", "sqlite_schema"})
_TEMP_CATALOG = frozenset({"sqlite_temp_master", "sqlite_temp_schema"})
_SEQUENCE = "sqlite_sequence"
_AUTO_INDEX = "sqlite_autoindex_"
_MAIN = frozenset({"main", None})


class Verb(StrEnum):
    """What kind of statement SQLite is about to compile, by its first word."""

    ROWS = "rows"  # SELECT, INSERT, UPDATE, DELETE, also behind WITH
    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"


_SEQUENCE_WRITES = frozenset(
    {(Verb.ALTER, sqlite3.SQLITE_UPDATE), (Verb.DROP, sqlite3.SQLITE_DELETE)}
)


@dataclass(frozen=True, slots=True)
class QueryDenial:
    """What was asked for and is not allowed, in words for the audit log."""

    action: str
    name: str | None


class SqlGuard:
    """Answers SQLite's questions for one plugin. Denies whatever it does not know.

    `owned` is the live set of the plugin's own names, folded; `prefix` is how all of them begin.
    """

    __slots__ = ("_finishing", "_made", "_queried", "_verb", "denial", "owned", "prefix")

    def __init__(self, prefix: str, owned: AbstractSet[str]) -> None:
        self.prefix = prefix
        self.owned = owned
        self.denial: QueryDenial | None = None
        self._verb = Verb.ROWS
        self._queried: frozenset[str] = frozenset()
        self._made: frozenset[str] = frozenset()
        self._finishing = False

    def expect(self, verb: Verb, queried: frozenset[str], made: frozenset[str]) -> None:
        """Prepare for one statement.

        `queried` are names of its common table expressions, `made` those it will create; both
        count only where they begin with the plugin's prefix.
        """
        self._verb = verb
        self._queried = queried
        self._made = made
        self._finishing = False
        self.denial = None

    def __call__(
        self,
        action: int,
        first: str | None,
        second: str | None,
        database: str | None,
        source: str | None,
    ) -> int:
        """Answer one question. An exception in here counts as a denial, too."""
        del source  # the name of a common table expression; says nothing about authority
        if self._allows(action, first or "", second or "", database):
            return sqlite3.SQLITE_OK
        if self.denial is None:
            self.denial = QueryDenial(_ACTIONS.get(action, f"action {action}"), first or second)
        return sqlite3.SQLITE_DENY

    def _allows(self, action: int, first: str, second: str, database: str | None) -> bool:
        match action:
            case sqlite3.SQLITE_READ:
                return self._read(fold_name(first), second, database)
            case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_RECURSIVE:
                return self._verb is not Verb.DROP
            case sqlite3.SQLITE_FUNCTION:
                return self._calls(second.lower())
            case sqlite3.SQLITE_INSERT | sqlite3.SQLITE_UPDATE | sqlite3.SQLITE_DELETE:
                return self._writes(action, fold_name(first), database)
            case sqlite3.SQLITE_ALTER_TABLE:
                return first == "main" and self._alters(second)
            case sqlite3.SQLITE_PRAGMA:  # how ALTER TABLE ADD COLUMN tries a new constraint
                return first == "quick_check" and self._alters(second)
            case _:
                return database == "main" and self._defines(action, first, second)

    # -- rows ----------------------------------------------------------------------------------

    def _calls(self, function: str) -> bool:
        return function in FUNCTIONS or (self._verb is Verb.ALTER and function in _ALTER_FUNCTIONS)

    def _read(self, name: str, column: str, database: str | None) -> bool:
        if database not in _MAIN:
            return self._verb is Verb.ALTER and database == "temp" and name in _TEMP_CATALOG
        if name in self.owned or name in TABLE_FUNCTIONS:
            return True
        if name in _CATALOG:
            return self._reads_catalog(column)
        if name == _SEQUENCE:
            return self._verb in {Verb.ALTER, Verb.DROP}
        if name == "pragma_quick_check":
            return self._verb is Verb.ALTER
        # Asked with an empty column for tables of which no column is used, as they were written.
        return (column == "" and self._is_own(name, self._queried)) or self._makes(name)

    def _reads_catalog(self, column: str) -> bool:
        if self._verb is Verb.CREATE:
            # SQLite's own last step; a SELECT of the plugin's would have been compiled before.
            return self._finishing and column == "ROWID"
        return self._verb in {Verb.ALTER, Verb.DROP}  # they have no place for a SELECT

    def _writes(self, action: int, name: str, database: str | None) -> bool:
        if name in _TEMP_CATALOG:
            return self._verb is Verb.ALTER and action == sqlite3.SQLITE_UPDATE
        if database != "main":
            return False
        if name in self.owned or self._makes(name):
            return True
        if name == _SEQUENCE:  # renamed and dropped together with its table
            return (self._verb, action) in _SEQUENCE_WRITES
        return name in _CATALOG and self._writes_catalog(action)

    def _writes_catalog(self, action: int) -> bool:
        # CREATE begins with a row and ends by filling it in; so does a second compilation.
        self._finishing = action == sqlite3.SQLITE_UPDATE
        match action:
            case sqlite3.SQLITE_INSERT:
                return self._verb is Verb.CREATE
            case sqlite3.SQLITE_DELETE:
                return self._verb is Verb.DROP
            case _:
                return self._verb is not Verb.ROWS

    # -- schema --------------------------------------------------------------------------------

    def _defines(self, action: int, first: str, second: str) -> bool:
        name, table = fold_name(first), fold_name(second)
        match action:
            case sqlite3.SQLITE_CREATE_TABLE:
                counts = name == _SEQUENCE and self._verb is Verb.CREATE
                return counts or self._makes(name)
            case sqlite3.SQLITE_CREATE_INDEX:
                named = self._makes(name) or name.startswith(_AUTO_INDEX)
                return named and (table in self.owned or self._makes(table))
            case sqlite3.SQLITE_REINDEX:
                return self._makes(name)
            case sqlite3.SQLITE_DROP_TABLE:
                return self._verb is Verb.DROP and name in self.owned
            case sqlite3.SQLITE_DROP_INDEX:
                return self._verb is Verb.DROP and table in self.owned
            case _:
                return False

    def _alters(self, table: str) -> bool:
        return self._verb is Verb.ALTER and fold_name(table) in self.owned

    def _makes(self, name: str) -> bool:
        return self._verb in {Verb.CREATE, Verb.ALTER} and self._is_own(name, self._made)

    def _is_own(self, name: str, names: frozenset[str]) -> bool:
        return name in names and name.startswith(self.prefix)


def verb_of(sql: str) -> Verb:
    """Return what kind of statement this is, by its first word, as SQLite will."""
    return _verb_of(sql) if len(sql) <= _SHORT_CHARS else _verb_of.__wrapped__(sql)


@lru_cache(maxsize=512)
def _verb_of(sql: str) -> Verb:
    words = leading_words(sql, 1)
    return _VERBS.get(words[0], Verb.ROWS) if words else Verb.ROWS


_VERBS = {"CREATE": Verb.CREATE, "ALTER": Verb.ALTER, "DROP": Verb.DROP}
_ACTIONS = {
    getattr(sqlite3, f"SQLITE_{name.upper().replace(' ', '_')}"): name
    for name in (
        "alter table", "analyze", "attach", "create index", "create table", "create temp index",
        "create temp table", "create temp trigger", "create temp view", "create trigger",
        "create view", "create vtable", "delete", "detach", "drop index", "drop table",
        "drop temp table", "drop trigger", "drop view", "drop vtable", "function", "insert",
        "pragma", "read", "recursive", "reindex", "savepoint", "select", "transaction", "update",
    )
}  # fmt: skip
