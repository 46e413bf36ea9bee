"""What the store knows of a guest's statement: `GuestStatement`, `GuestLimits`, `GuestFault`.

A guest is a plugin whose SQL the host runs for it. Names in here are physical ones, as SQLite has
them, folded.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from kaged.base.lazy_dataclass import dataclass
from kaged.store.errors import StoreError

GuestValue = str | int | float | None


class NameKind(StrEnum):
    """What a recorded name stands for."""

    TABLE = "table"
    INDEX = "index"
    RESERVED = "reserved"  # a foreign key names it, so nobody else may take it


@dataclass(frozen=True, slots=True)
class Claim:
    """A name that a statement gives to something of the plugin's. `plain` is as the plugin says."""

    physical: str
    plain: str
    kind: NameKind


@dataclass(frozen=True, slots=True)
class GuestStatement:
    """One statement of a plugin, its names already those of the plugin's own schema."""

    sql: str
    names: frozenset[str] = frozenset()  # every physical name it mentions
    queried: frozenset[str] = frozenset()  # those of its common table expressions
    claims: tuple[Claim, ...] = ()  # what it makes, and what its foreign keys name
    made: frozenset[str] = field(init=False)  # the names that it gives to something new

    def __post_init__(self) -> None:
        made = (claim.physical for claim in self.claims if claim.kind is not NameKind.RESERVED)
        object.__setattr__(self, "made", frozenset(made))


@dataclass(frozen=True, slots=True)
class GuestStep:
    """A statement with the values for its question marks."""

    statement: GuestStatement
    values: tuple[GuestValue, ...] = ()


@dataclass(frozen=True, slots=True)
class GuestLimits:
    """How much one request of a plugin may take (PH-BEY-08)."""

    time_s: float
    rows: int
    result_bytes: int
    database_bytes: int


@dataclass(frozen=True, slots=True)
class GuestRows:
    """What a query gave, as SQLite gave it. `size_bytes` is the least it takes in an answer."""

    columns: tuple[str, ...]
    rows: list[tuple[str | bytes | int | float | None, ...]]
    size_bytes: int


class FaultKind(StrEnum):
    """Why a statement of a plugin failed, as far as its author would act differently."""

    DENIED = "denied"  # outside the plugin's own tables
    SYNTAX = "syntax"
    VALUES = "values"  # the bound values do not fit the statement
    CONSTRAINT = "constraint"
    FAILED = "failed"  # no such table, no such column and the like
    TIME = "time_s"
    ROWS = "rows"
    RESULT = "result_bytes"
    VALUE = "value_bytes"
    DATABASE = "database_bytes"
    SCRATCH = "scratch_bytes"
    UNAVAILABLE = "unavailable"  # the database itself is in trouble


class GuestFault(StoreError):
    """A statement of a plugin was not run, or undone. `limit` is the one it ran into."""

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        *,
        limit: float | None = None,
        name: str | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.limit = limit
        self.name = name
        self.step = step
