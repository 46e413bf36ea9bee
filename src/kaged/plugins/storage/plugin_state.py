"""`PluginStorageState`: what the broker keeps for one plugin: statements, an open transaction."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import field

from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.storage.names import PluginSchema
from kaged.plugins.storage.statement import Rewritten
from kaged.store.guest import GuestStep
from kaged.wire.errors import PluginError, ResourceBusy

REMEMBERED_STATEMENTS = 256
REMEMBERED_LIMIT_CHARS = 8 * 1024  # longer statements are read again each time
TRANSACTION_STATEMENTS = 500
TRANSACTION_LIMIT_CHARS = 4 * 1024 * 1024
TRANSACTION_IDLE_S = 5.0  # PH-BEY-05
REST_S = 10.0  # what slow writes may take of the one writer is a tenth of its time


@dataclass(slots=True)
class StorageTransaction:
    """Statements that wait for their commit. Nothing in the database is held for them."""

    id: str
    touched_s: float
    steps: list[GuestStep] = field(default_factory=list[GuestStep])
    made: set[str] = field(default_factory=set[str])
    chars: int = 0

    def add(self, statement: Rewritten, step: GuestStep, now_s: float) -> None:
        """Let a statement wait.

        Raises:
            PluginError: too many wait already, or too large ones.
        """
        texts = sum(len(value) for value in step.values if isinstance(value, str))
        chars = self.chars + len(statement.guest.sql) + texts
        if len(self.steps) >= TRANSACTION_STATEMENTS:
            raise _full("transaction_statements", TRANSACTION_STATEMENTS)
        if chars > TRANSACTION_LIMIT_CHARS:
            raise _full("transaction_chars", TRANSACTION_LIMIT_CHARS)
        self.chars = chars
        self.touched_s = now_s
        self.steps.append(step)
        self.made |= statement.makes


@dataclass(slots=True)
class PluginStorageState:
    """One plugin's side of the broker. Its requests are served one at a time, in order."""

    schema: PluginSchema
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    transaction: StorageTransaction | None = None
    rests_until_s: float = 0.0  # no write before then
    _known: OrderedDict[str, Rewritten] = field(default_factory=OrderedDict[str, Rewritten])

    def recall(self, sql: str) -> Rewritten | None:
        """Return the rewritten form of a statement that was seen not long ago."""
        found = self._known.get(sql)
        if found is not None:
            self._known.move_to_end(sql)
        return found

    def remember(self, sql: str, statement: Rewritten) -> None:
        """Keep a rewritten form, for this plugin alone."""
        if len(sql) <= REMEMBERED_LIMIT_CHARS:
            self._known[sql] = statement
            if len(self._known) > REMEMBERED_STATEMENTS:
                self._known.popitem(last=False)

    def rest(self, now_s: float) -> None:
        """Note that a write took too long: the next one has to wait."""
        self.rests_until_s = now_s + REST_S

    def require_rested(self, now_s: float) -> None:
        """Refuse a write that follows too closely on one that took too long.

        Raises:
            ResourceBusy: it does.
        """
        if now_s < self.rests_until_s:
            raise ResourceBusy(
                f"a write of this plugin took too long; writes are paused for {REST_S:g} s",
                detail={"retry_after_seconds": round(self.rests_until_s - now_s, 3)},
            )

    def current(self, now_s: float) -> StorageTransaction | None:
        """Return the open transaction; one that was idle for too long is rolled back by this."""
        held = self.transaction
        if held is not None and now_s - held.touched_s > TRANSACTION_IDLE_S:
            self.transaction = held = None
        return held

    def require(self, transaction_id: str, now_s: float) -> StorageTransaction:
        """Return the open transaction with this id.

        Raises:
            PluginError: there is none.
        """
        held = self.current(now_s)
        if held is None or held.id != transaction_id:
            raise PluginError(
                "there is no open transaction with this id; one that is idle for "
                f"{TRANSACTION_IDLE_S:g} s is rolled back",
                detail={"kind": "no_transaction"},
            )
        return held


def _full(limit: str, value: int) -> PluginError:
    return PluginError(
        f"the transaction is too large; the limit is {value}",
        detail={"limit": limit, "value": value},
    )
