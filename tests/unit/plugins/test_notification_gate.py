from __future__ import annotations

from kaged.plugins.notifications import NotificationGate, NotificationVerdict
from requirements import requirement


@requirement("PH-NOTIF-05", "PH-NOTIF-06")
def test_a_hundred_pass_and_the_next_is_a_flood_told_once() -> None:
    gate = NotificationGate()
    verdicts = [gate.judge("a.b", 1.0).verdict for _ in range(150)]
    assert verdicts[:100] == [NotificationVerdict.ACCEPT] * 100
    assert verdicts[100] is NotificationVerdict.FLOOD
    assert verdicts[101:] == [NotificationVerdict.DROP] * 49
    assert gate.dropped == 50


@requirement("PH-NOTIF-10")
def test_after_the_window_notifications_pass_again() -> None:
    gate = NotificationGate()
    for _ in range(150):
        gate.judge("a.b", 1.0)
    assert gate.judge("a.b", 1.99).verdict is NotificationVerdict.DROP
    assert gate.judge("a.b", 2.0).verdict is NotificationVerdict.ACCEPT


def test_the_window_slides() -> None:
    gate = NotificationGate()
    for n in range(100):
        assert gate.judge("a.b", n / 100).verdict is NotificationVerdict.ACCEPT
    assert gate.judge("a.b", 0.999).verdict is NotificationVerdict.FLOOD
    assert gate.judge("a.b", 1.0).verdict is NotificationVerdict.ACCEPT
    assert gate.judge("a.b", 1.005).verdict is NotificationVerdict.DROP


@requirement("PH-NOTIF-06")
def test_the_flood_tells_its_rate_and_so_does_a_later_one() -> None:
    gate = NotificationGate()
    for _ in range(100):
        gate.judge("a.b", 0.0)
    judged = gate.judge("a.b", 0.5)
    assert judged.rate == 101
    for _ in range(200):
        gate.judge("a.b", 0.6)
    for _ in range(100):
        gate.judge("a.b", 1.5)
    later = gate.judge("a.b", 1.55)
    assert later.verdict is NotificationVerdict.FLOOD
    assert later.rate == 301


@requirement("PH-NOTIF-09")
def test_two_plugins_have_two_gates() -> None:
    noisy, quiet = NotificationGate(), NotificationGate()
    for _ in range(500):
        noisy.judge("a.b", 0.0)
    assert quiet.judge("a.b", 0.0).verdict is NotificationVerdict.ACCEPT


@requirement("PH-NOTIF-01")
def test_illegal_names_are_not_counted() -> None:
    gate = NotificationGate()
    for name in ("Catalog", "kaged.x", "system.y", "single", "a..b", ""):
        assert gate.judge(name, 0.0).verdict is NotificationVerdict.ILLEGAL
    assert gate.dropped == 0


def test_an_endless_flood_keeps_a_bounded_memory() -> None:
    gate = NotificationGate()
    for _ in range(50_000):
        gate.judge("a.b", 0.0)
    assert len(gate._dropped) <= 10_000
