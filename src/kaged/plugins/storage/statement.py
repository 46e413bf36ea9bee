"""`Rewritten`: a plugin's statement, its names turned into those of its own schema."""

from __future__ import annotations

from enum import StrEnum

from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.guest import GuestStatement, NameKind


class StatementKind(StrEnum):
    """The statements that a plugin may run. Everything else is refused."""

    SELECT = "SELECT"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CREATE_TABLE = "CREATE TABLE"
    CREATE_INDEX = "CREATE INDEX"
    ALTER_TABLE = "ALTER TABLE"
    DROP_TABLE = "DROP TABLE"
    DROP_INDEX = "DROP INDEX"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A statement ready to run.

    `uses` are the tables it needs to find, as the plugin names them, folded: not those that it
    makes itself. `shown` are the texts that were put in, with what stood there before.
    """

    kind: StatementKind
    guest: GuestStatement
    uses: frozenset[str] = frozenset()
    shown: tuple[tuple[str, str], ...] = ()

    @property
    def reads_only(self) -> bool:
        """Whether it is a SELECT."""
        return self.kind is StatementKind.SELECT

    @property
    def makes(self) -> frozenset[str]:
        """The tables that it makes, as the plugin names them, folded."""
        claims = self.guest.claims
        return frozenset(fold_name(one.plain) for one in claims if one.kind is NameKind.TABLE)

    def column(self, name: str) -> str:
        """Return a result column's name as the plugin wrote it, without what was put in."""
        for inserted, original in self.shown:
            if inserted in name:
                name = name.replace(inserted, original)
        return name
