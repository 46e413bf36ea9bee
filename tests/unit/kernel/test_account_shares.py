"""A share of an account lets exactly its person or team do exactly what it names, until it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kaged.kernel.account_shares import AccountShare, decide_share
from requirements import requirement

NOBODY: frozenset[str] = frozenset()
SHARE = AccountShare(
    share_id="shr_1",
    owner="ann",
    capability_id="gog.email",
    account_ref="work",
    person="bob",
    team=None,
    operations=["list", "read"],
    created_at_ms=0,
    expires_at_ms=1000,
)
TEAM = replace(SHARE, person=None, team="support")


def allowed(
    share: AccountShare,
    person: str = "bob",
    teams: frozenset[str] = NOBODY,
    capability: str = "gog.email",
    operation: str | None = "read",
    now_ms: int = 999,
) -> bool:
    return decide_share(share, person, teams, capability, operation, now_ms).allowed


@requirement("SC-POL-17")
def test_only_the_named_combination_works() -> None:
    assert allowed(SHARE)
    assert allowed(SHARE, operation=None)
    assert allowed(TEAM, "cy", frozenset({"support"}))
    assert not allowed(SHARE, "cy")
    assert not allowed(SHARE, "bob2")
    assert not allowed(SHARE, "BOB")
    assert not allowed(SHARE, capability="gog.calendar")
    assert not allowed(SHARE, operation="send")
    assert not allowed(SHARE, operation="")
    assert not allowed(TEAM, "bob")
    assert not allowed(TEAM, "bob", frozenset({"support2"}))


@requirement("SC-POL-17")
def test_a_share_ends_at_its_time() -> None:
    assert not allowed(SHARE, now_ms=1000)
    assert allowed(replace(SHARE, expires_at_ms=None), now_ms=2**60)


@pytest.mark.parametrize("share", [SHARE, TEAM])
def test_nobody_shares_with_themselves_or_with_nobody(share: AccountShare) -> None:
    everywhere = frozenset({"support"})
    assert not allowed(share, "ann", everywhere)
    assert not allowed(share, "", everywhere)


@pytest.mark.parametrize(
    "damaged",
    [
        replace(SHARE, person=None),
        replace(SHARE, person="bob", team="support"),
        replace(SHARE, operations=[]),
        replace(SHARE, operations=None),  # as in a damaged row
        replace(SHARE, expires_at_ms="soon"),
    ],
)
def test_what_makes_no_sense_allows_nothing(damaged: AccountShare) -> None:
    assert not allowed(damaged, teams=frozenset({"support"}))


def test_a_refusal_names_what_is_shared_to_those_it_is_shared_with_alone() -> None:
    said = decide_share(SHARE, "bob", NOBODY, "gog.email", "send", 0).detail
    assert "list, read" in said
    told = decide_share(SHARE, "cy", NOBODY, "gog.email", "send", 0).detail
    assert "list" not in told
