from __future__ import annotations

from kaged.cage.net.plan import NetFacts
from kaged.cage.net.probe import NetProbe, facts_from


def rows(*passed: str) -> list[NetProbe]:
    names = ("net.namespace", "net.route", "net.ipv6", "net.trap")
    return [NetProbe(name, ok=name in passed, detail="") for name in names]


def test_facts_are_what_the_trials_showed() -> None:
    assert facts_from(rows("net.namespace", "net.route", "net.ipv6", "net.trap")) == NetFacts()
    assert facts_from(rows("net.namespace", "net.route")) == NetFacts(
        trap=False, route=True, ipv6=False
    )
    assert facts_from([]) == NetFacts(trap=False, route=False, ipv6=False)
