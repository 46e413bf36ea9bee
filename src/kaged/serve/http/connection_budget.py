"""`ConnectionBudgets`: how many connections each peer may hold; none uses up another's.

TCP is open to every user of the machine, the Unix socket to the operator (and to root, whom file
modes do not stop). So both have budgets of their own, and on the Unix socket each uid has one. A
budget that is full makes room by dropping the oldest connection on which nobody has shown yet that
they may come in: whoever only opens connections drops their own and locks nobody out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from kaged.base.lazy_dataclass import dataclass

Peer: TypeAlias = Literal["tcp"] | int | None
"""Whose budget: all of TCP, or one uid of the Unix socket; None is a uid that cannot be read."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """How many connections may be open.

    Over TCP; on the Unix socket by the owner, by each other uid, and by all other uids together.
    """

    tcp: int = 256
    owner: int = 256
    other_uid: int = 16
    other_uids: int = 64


class ConnectionSlot:
    """One open connection as its budget counts it."""

    __slots__ = ("_abort", "_budget")

    def __init__(self, budget: _Budget, abort: Callable[[], None]) -> None:
        self._budget = budget
        self._abort = abort

    def vouch(self) -> None:
        """Note that a request on this connection was let in; it is not dropped to make room."""
        if self in self._budget.unproven:
            del self._budget.unproven[self]
            self._budget.vouched.add(self)

    def release(self) -> None:
        """Free the place; a second time changes nothing."""
        self._budget.unproven.pop(self, None)
        self._budget.vouched.discard(self)

    def drop(self) -> None:
        """End the connection and give the place back at once."""
        self.release()
        self._abort()


class _Budget:
    """The connections of one kind of peer; those that proved nothing yet, oldest first."""

    __slots__ = ("limit", "unproven", "vouched")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.unproven: dict[ConnectionSlot, None] = {}
        self.vouched: set[ConnectionSlot] = set()

    def __len__(self) -> int:
        return len(self.unproven) + len(self.vouched)


class ConnectionBudgets:
    """Admits connections, each to the budget of its peer."""

    def __init__(self, owner_uid: int, limits: ListenerLimits | None = None) -> None:
        self._owner_uid = owner_uid
        self.limits = limits or ListenerLimits()
        self._budgets: dict[Peer, _Budget] = {}

    def limit_of(self, peer: Peer) -> int:
        """Return how many connections this peer may hold."""
        if peer == "tcp":
            return self.limits.tcp
        return self.limits.owner if peer == self._owner_uid else self.limits.other_uid

    def admit(self, peer: Peer, abort: Callable[[], None]) -> ConnectionSlot | None:
        """Return a place for one more connection, None when there is none to be had.

        In a full budget the oldest connection without a request that was let in is dropped for
        it. A connection that serves somebody who may come in never is.
        """
        self._forget_empty()
        budget = self._budgets.get(peer) or _Budget(self.limit_of(peer))
        full = len(budget) >= budget.limit
        if full or (self._is_other(peer) and self._others() >= self.limits.other_uids):
            if not budget.unproven:
                return None
            next(iter(budget.unproven)).drop()
        self._budgets[peer] = budget
        slot = ConnectionSlot(budget, abort)
        budget.unproven[slot] = None
        return slot

    def _is_other(self, peer: Peer) -> bool:
        return peer not in ("tcp", self._owner_uid)

    def _others(self) -> int:
        return sum(len(held) for peer, held in self._budgets.items() if self._is_other(peer))

    def _forget_empty(self) -> None:
        # There are as many uids as numbers; only those with a connection are remembered.
        self._budgets = {peer: held for peer, held in self._budgets.items() if held}
