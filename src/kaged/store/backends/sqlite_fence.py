"""The fence around a plugin's statements: how large, how long and how much of everything.

SQLite asks between its steps whether to go on, and has limits per connection. What it has no
limit for is made harmless here: functions of quadratic time, and temporary files.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from kaged.store.backends.sqlite_faults import is_syntax
from kaged.store.backends.sqlite_functions import use_linear_functions
from kaged.store.backends.sqlite_guard import VALUE_LIMIT_BYTES

VARIABLES_LIMIT = 10_000
SCRATCH_LIMIT_BYTES = 256 * 1024 * 1024
CACHE_KIB = 1024
# Looks at the time come between steps of SQLite's virtual machine, and one step may be the
# comparison of a whole value with a pattern: so there are many looks, and the limits are low.
_STEPS_PER_LOOK = 100
_PATTERN_LIMIT_READING = 256
_PATTERN_LIMIT_WRITING = 64
_SCRATCH_FILES = "etilqs_"  # how SQLite names its temporary files
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: VALUE_LIMIT_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1024 * 1024,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,  # the driver keeps 128 compiled statements
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: _PATTERN_LIMIT_READING,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: VARIABLES_LIMIT,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 100,  # cascades of foreign keys count as triggers
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


def raise_fence(
    driver: sqlite3.Connection, look: Callable[[], int], *, writes: bool
) -> Callable[[], None]:
    """Put the fence around a new connection; `look` says, many times, whether to stop.

    Gives what takes the fence down when the connection closes.
    """
    # Sorting spills to files, so that memory stays small; `scratch_bytes` watches them.
    # Functions of ours may stand in constraints: the schema behind them is the plugin's own.
    for pragma in ("temp_store=FILE", f"cache_size=-{CACHE_KIB}", "trusted_schema=ON"):
        driver.execute(f"PRAGMA {pragma}").fetchall()
    # The first use of a table function touches the catalog; have it behind us.
    driver.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").fetchall()
    for limit, value in _LIMITS.items():
        driver.setlimit(limit, value)
    if writes:
        driver.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _PATTERN_LIMIT_WRITING)
    driver.set_progress_handler(look, _STEPS_PER_LOOK)
    return use_linear_functions(driver, VALUE_LIMIT_BYTES)


def scratch_bytes() -> int:
    """Add up what SQLite holds in temporary files, for all statements together."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if _SCRATCH_FILES in str(entry.readlink()):
                total += entry.stat().st_size
        except OSError:
            continue  # closed in between
    return total


def syntax_problem(sql: str) -> str | None:
    """Return SQLite's own syntax error for a statement; None if it can read it.

    The statement is not run, and the database it would run on is an empty one in memory.
    """
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for limit, value in _LIMITS.items():
            conn.setlimit(limit, value)
        conn.set_authorizer(_harmless)
        conn.execute(f"EXPLAIN {sql}")
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        return str(error) if is_syntax(error) else None
    finally:
        conn.close()
    return None


def _harmless(action: int, *_: object) -> int:
    # Some pragmas work while they are compiled.
    forbidden = {sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_ATTACH}
    return sqlite3.SQLITE_DENY if action in forbidden else sqlite3.SQLITE_OK
