"""Any statement over foreign names, with the rewriter or without it: no foreign row comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.storage_arena import StorageArena
from security.plugins.storage_attacks import SECRETS, V
from security.plugins.storage_stage import fooled, leaks, settled
from thorough import examples

_FOREIGN = [V, "projects", "audit_events", "sqlite_master", "kaged_plugin_names", "x_y", "secrets",
            "plugin_attacker_x_y", "sqlite_schema", "pragma_table_list", "main.projects",
            f"main.{V}", "dbstat", "temp.projects"]  # fmt: skip
_OWN = ["notes", "tags"]
_STYLES = ["{}", '"{}"', "[{}]", "`{}`", "'{}'", "/**/{}/**/", "{} AS notes", "({})", "{} x"]
SELECTS, CHANGES = 8, 10


@dataclass
class Grammar:
    """Builds statements that reach for a foreign name at some place or other."""

    draw: st.DrawFn
    depth: int = 3

    def table(self) -> str:
        name = self.draw(st.sampled_from([*_FOREIGN, *_OWN]))
        shown = "".join(letter.upper() if self.draw(st.booleans()) else letter for letter in name)
        style = self.draw(st.sampled_from(_STYLES))
        return style.format(shown)

    def select(self, form: int | None = None) -> str:
        """Return a query of one of the eight forms, with others inside it."""
        if self.depth <= 0:
            return f"SELECT * FROM {self.table()}"
        self.depth -= 1
        match self.draw(st.sampled_from(range(SELECTS))) if form is None else form:
            case 0:
                return f"SELECT * FROM {self.table()}, {self.table()}"
            case 1:
                return f"SELECT (SELECT 1 FROM {self.table()}), * FROM ({self.select()})"
            case 2:
                return f"{self.select()} UNION ALL {self.select()}"
            case 3:
                name = self.draw(st.sampled_from([*_FOREIGN, "c"]))
                return f"WITH {name} AS ({self.select()}) SELECT * FROM {name}, {self.table()}"
            case 4:
                return f"SELECT * FROM {self.table()} WHERE 1 IN {self.table()}"
            case 5:
                return f"SELECT count(*) FROM {self.table()} WHERE EXISTS ({self.select()})"
            case 6:
                return f"SELECT value FROM json_each(({self.select()}))"
            case _:
                return f"SELECT token, root, a, sql, name, data FROM {self.table()}"

    def change(self, form: int) -> str:
        """Return a statement that changes something, of one of the ten forms."""
        table, select = self.table(), self.select()
        return (
            f"INSERT INTO notes (body) {select}",
            f"INSERT INTO {table} {select}",
            f"UPDATE {table} SET body = ({select})",
            f"DELETE FROM {table} WHERE EXISTS ({select})",
            f"CREATE TABLE IF NOT EXISTS copied AS {select}",
            f"CREATE TABLE IF NOT EXISTS {table} (a REFERENCES {self.table()})",
            f"DROP TABLE IF EXISTS {table}",
            f"ALTER TABLE {table} RENAME TO {self.table()}",
            f"CREATE INDEX i ON {table} (a)",
            f"REPLACE INTO notes (body) VALUES (({select})) RETURNING ({select})",
        )[form]


@st.composite
def _statements(draw: st.DrawFn, form: int) -> tuple[str, str]:
    grammar = Grammar(draw)
    if form < SELECTS:
        return "query", grammar.select(form)
    return "exec", grammar.change(form - SELECTS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worn(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StorageArena]:
    """Yield an arena in which every statement meets what those before it have left."""
    made = await settled(tmp_path_factory.mktemp("worn"))
    yield made
    await made.close()


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(1200)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("form", range(SELECTS + CHANGES))
@settings(
    max_examples=examples(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), trusting=st.booleans())
async def test_no_statement_ever_gives_a_foreign_row(
    worn: StorageArena, form: int, data: st.DataObject, trusting: bool
) -> None:
    """With the rewriter or without it: what comes back, and what can be read later, is own."""
    method, sql = data.draw(_statements(form))
    worn.broker = await worn.reopened(None, fooled if trusting else None)
    answer = await worn.ask("attacker", method, {"sql": sql})
    assert leaks(answer) == [], (sql, answer)
    worn.broker = await worn.reopened()
    for table in await worn.tables("attacker"):
        kept = await worn.ask("attacker", "query", {"sql": f'SELECT * FROM "{table}"'})
        assert leaks(kept) == [], (sql, kept)
    assert await worn.query("victim", "SELECT token FROM secrets") == [{"token": SECRETS[0]}]
    assert await worn.query("attacker-x", "SELECT a FROM y") == [{"a": SECRETS[2]}]
    assert worn.raw("SELECT count(*) FROM projects") == [(1,)]
