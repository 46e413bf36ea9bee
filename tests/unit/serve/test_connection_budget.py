"""Which connection gets a place, and which one is dropped for it."""

from __future__ import annotations

from kaged.serve.http.connection_budget import (
    ConnectionBudgets,
    ConnectionSlot,
    ListenerLimits,
    Peer,
)

OWNER = 1000
LIMITS = ListenerLimits(tcp=2, owner=3, other_uid=2, other_uids=3)


class _Lab:
    """Budgets, and a list of who was dropped."""

    def __init__(self) -> None:
        self.budgets = ConnectionBudgets(OWNER, LIMITS)
        self.dropped: list[str] = []

    def admit(self, peer: Peer, name: str) -> ConnectionSlot:
        """Admit one that has to find a place."""
        slot = self.budgets.admit(peer, lambda: self.dropped.append(name))
        assert slot is not None
        return slot

    def full(self, peer: Peer) -> bool:
        """Return whether there is no place."""
        return self.budgets.admit(peer, lambda: None) is None


def test_the_oldest_that_proved_nothing_makes_room() -> None:
    lab = _Lab()
    for name in "abcd":
        lab.admit("tcp", name)
    assert lab.dropped == ["a", "b"]


def test_a_connection_that_was_let_in_stays_and_a_full_budget_refuses() -> None:
    lab = _Lab()
    first, second = lab.admit("tcp", "a"), lab.admit("tcp", "b")
    first.vouch()
    third = lab.admit("tcp", "c")
    assert lab.dropped == ["b"]
    third.vouch()
    assert lab.full("tcp")
    second.release()  # it was dropped and ends only now
    assert lab.full("tcp")
    first.release()
    first.release()
    lab.admit("tcp", "d")
    assert lab.dropped == ["b"]


def test_one_that_was_dropped_is_not_let_in_afterwards() -> None:
    lab = _Lab()
    first = lab.admit("tcp", "a")
    lab.admit("tcp", "b")
    lab.admit("tcp", "c")
    first.vouch()
    assert not lab.full("tcp")


def test_budgets_do_not_touch_each_other() -> None:
    lab = _Lab()
    for peer in ("tcp", 0, None):
        for _ in range(10):
            slot = lab.budgets.admit(peer, lambda: None)
            if slot is not None:
                slot.vouch()
    for name in "abc":
        lab.admit(OWNER, name).vouch()
    assert lab.dropped == []
    assert lab.full(OWNER)


def test_other_uids_together_have_a_limit_too() -> None:
    lab = _Lab()
    held = [lab.admit(uid, str(uid)) for uid in (1, 2, 3)]
    assert lab.full(4)
    lab.admit(3, "again")
    assert lab.dropped == ["3"]
    held[0].release()
    lab.admit(4, "4")
