"""`Shares`: of what everybody shares, nobody but the operator can take all.

One mechanism for every table that is full at some number: a person has a share of the places, and
the last one is kept for the operator, who can then look and end what is in the way.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from kaged.base.errors import KagedError
from kaged.kernel.identity import Actor

PARTS: Final = 4
"""A person may hold one part of so many."""


class Shares:
    """Counts who holds what of `limit` places. `what` is how messages call them, `error` is raised.

    A person is who the edge found them to be, in all chats and on all ways in; whoever is not a
    person of somebody's is the operator, or what the host does by itself.
    """

    def __init__(self, limit: int, *, what: str, error: type[KagedError]) -> None:
        self._limit = limit
        self._what = what
        self._error = error
        self._held: dict[Hashable, str | None] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def of_one_person(self) -> int:
        """How many one person may hold."""
        return max(1, self._limit // PARTS)

    def take(self, place: Hashable, actor: Actor | None) -> None:
        """Take a place, to be given back with `release`.

        Raises:
            KagedError: of this table's kind; all are taken, or all that this person may have.
        """
        person = actor.person_id if actor is not None and actor.is_person else None
        room = self._limit if person is None else self._limit - 1
        if len(self._held) >= room:
            raise self._error(
                f"All {room} places for {self._what} are taken.",
                fix="Wait until some have ended.",
                limit=room,
            )
        share = self.of_one_person
        if person is not None and sum(one == person for one in self._held.values()) >= share:
            raise self._error(
                f"You have {share} {self._what}, as many as one person may have at a time.",
                fix="End one of yours, or wait until one has ended.",
                limit=share,
            )
        self._held[place] = person

    def release(self, place: Hashable) -> None:
        """Free a place; one that is not held is fine."""
        self._held.pop(place, None)
