"""`Transactions`: what a repository needs of the database. `Database` and `Store` both have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")


class Transactions(Protocol):
    """Units of work in, results out once they are durable."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the one writer's transaction; returns when it is committed."""
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one unchanging state of the database."""
        ...
