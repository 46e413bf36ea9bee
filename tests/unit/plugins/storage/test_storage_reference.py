"""The reference page says what the code does."""

from __future__ import annotations

from pathlib import Path

from kaged.plugins.conversation_machine import STORAGE_METHODS
from kaged.plugins.storage import StorageQuota
from kaged.plugins.storage.dialect import NESTING_LIMIT, TOKENS_LIMIT
from kaged.plugins.storage.gate import SQL_LIMIT_CHARS
from kaged.plugins.storage.names import NAME_LIMIT_CHARS, RESERVED_BEGINNINGS
from kaged.plugins.storage.plugin_state import (
    REST_S,
    TRANSACTION_IDLE_S,
    TRANSACTION_LIMIT_CHARS,
    TRANSACTION_STATEMENTS,
)
from kaged.plugins.storage.quota import ENVELOPE_BYTES
from kaged.plugins.storage.values import VALUES_LIMIT
from kaged.store.backends.sqlite_fence import SCRATCH_LIMIT_BYTES
from kaged.store.backends.sqlite_guard import VALUE_LIMIT_BYTES
from kaged.store.guest import FaultKind

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "plugin-storage.md"
MIB = 1024 * 1024


def test_methods_limits_and_kinds_are_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    kinds = set(FaultKind) - {FaultKind.DENIED, FaultKind.SYNTAX, FaultKind.VALUES}
    names = [*STORAGE_METHODS, *(kind.value for kind in kinds), *RESERVED_BEGINNINGS]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_numbers_on_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    quota = StorageQuota()
    said = [
        f"| `database_bytes` | {quota.database_bytes // MIB} MiB |",
        f"| `rows` | {quota.rows:,} |",
        f"| `result_bytes` | 4 MiB less {ENVELOPE_BYTES // 1024} KiB |",
        f"{quota.read_time_s:g} s for a query, {quota.write_time_s:g} s for a write",
        f"| `value_bytes` | {VALUE_LIMIT_BYTES // MIB} MiB |",
        f"| `scratch_bytes` | {SCRATCH_LIMIT_BYTES // MIB} MiB |",
        f"| {TRANSACTION_STATEMENTS}, {TRANSACTION_LIMIT_CHARS // MIB} Mi |",
        f"for {TRANSACTION_IDLE_S:g} seconds is rolled back",
        f"{SQL_LIMIT_CHARS:,} characters, {TOKENS_LIMIT:,} words and signs and {NESTING_LIMIT}",
        f"{VALUES_LIMIT:,} values",
        f"at most {NAME_LIMIT_CHARS} characters",
    ]
    page = " ".join(text.split())
    assert [one for one in said if one not in page] == []
    assert REST_S == 10.0  # "ten seconds"
