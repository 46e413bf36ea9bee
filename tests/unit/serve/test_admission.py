"""Who may sign in, and as what: claims against the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from kaged.base import JsonObject
from kaged.config.oidc import OidcSection
from kaged.serve.signin.admission import MAX_GROUPS, admit, admit_again, kept_claims
from raising import raises_code

BASE: dict[str, Any] = {"issuer": "https://login.example", "client_id": "kaged"}


def _section(**keys: Any) -> OidcSection:
    return OidcSection(**BASE, **keys)


def test_nobody_is_let_in_unless_the_file_says_so() -> None:
    with raises_code("sign_in_not_allowed"):
        admit(_section(), "operator", {"sub": "ann", "groups": ["staff"]})


@pytest.mark.parametrize(
    "keys",
    [{"allow_everyone": True}, {"allow_people": ("ann",)}, {"allow_groups": ("staff",)}],
)
def test_whoever_is_let_in_is_no_operator(keys: dict[str, Any]) -> None:
    found = admit(_section(**keys), "operator", {"sub": "ann", "groups": ["staff"]})
    assert (found.facts.person_id, found.operator) == ("ann", False)


@pytest.mark.parametrize("keys", [{"operators": ("ann",)}, {"operator_groups": ("staff",)}])
def test_operators_are_named(keys: dict[str, Any]) -> None:
    assert admit(_section(**keys), "operator", {"sub": "ann", "groups": ["staff"]}).operator
    with raises_code("sign_in_not_allowed"):
        admit(_section(**keys), "operator", {"sub": "bob", "groups": ["Staff"]})


def test_the_operators_id_is_for_operators() -> None:
    with raises_code("sign_in_not_allowed"):
        admit(_section(allow_everyone=True), "ada", {"sub": "ada"})
    assert admit(_section(operators=("ada",)), "ada", {"sub": "ada"}).operator


@pytest.mark.parametrize(
    "value",
    [None, "", 7, ["ann"], "a b", "x" * 129, "ann\n", "*", "../etc", {"a": 1}, True, "service:ci"],
)
def test_an_id_that_is_none_lets_nobody_in(value: Any) -> None:
    with raises_code("sign_in_not_allowed"):
        admit(_section(allow_everyone=True), "operator", {"sub": value})


@pytest.mark.parametrize("verified", [None, False, "true", 1])
def test_an_address_counts_only_when_it_is_verified(verified: Any) -> None:
    section = _section(allow_everyone=True, person_claim="email")
    claims: JsonObject = {"sub": "1", "email": "ann@example.org", "email_verified": verified}
    with raises_code("sign_in_not_allowed"):
        admit(section, "operator", claims)
    found = admit(section, "operator", {**claims, "email_verified": True})
    assert found.facts.person_id == "ann@example.org"


def test_groups_become_roles_and_teams_and_nothing_else_does() -> None:
    section = _section(
        allow_everyone=True, roles={"cook": ("k",), "lead": ("l",)}, teams={"house": ("k", "x")}
    )
    found = admit(section, "operator", {"sub": "ann", "groups": ["k", "lead", 7, "y" * 300]})
    assert (found.facts.roles, found.facts.teams) == ({"cook"}, {"house"})
    assert admit(section, "operator", {"sub": "ann", "groups": "l"}).facts.roles == {"lead"}
    assert admit(section, "operator", {"sub": "ann", "groups": {"k": 1}}).facts.roles == set()
    nested = _section(allow_everyone=True, groups_claim="realm.roles", roles={"cook": ("k",)})
    claims: JsonObject = {"sub": "ann", "realm": {"roles": ["k"]}}
    assert admit(nested, "operator", claims).facts.roles == {"cook"}
    with raises_code("sign_in_not_allowed"):
        admit(
            section, "operator", {"sub": "ann", "groups": [str(n) for n in range(MAX_GROUPS + 1)]}
        )


def test_a_session_keeps_what_decides_and_no_more() -> None:
    section = _section(allow_everyone=True, groups_claim="realm.roles", person_claim="upn")
    claims: JsonObject = {
        "sub": "1", "upn": "ann", "realm": {"roles": ["k"]}, "address": "secret street",
        "email": "ann@example.org", "email_verified": False, "iss": "https://login.example",
    }  # fmt: skip
    kept = kept_claims(section, claims)
    assert "address" not in kept
    assert admit(section, "operator", kept) == admit(section, "operator", claims)
    assert dict(admit(section, "operator", kept).facts.claims) == {
        "iss": "https://login.example", "sub": "1",
    }  # fmt: skip


def test_who_was_let_in_before_is_held_to_what_the_file_says_now() -> None:
    roles = {"dev": ("staff",)}
    before = _section(allow_groups=("staff",), roles=roles)
    claims: JsonObject = {
        "sub": "ann", "iss": "https://login.example", "groups": ["staff", "other"],
    }  # fmt: skip
    facts = admit(before, "operator", claims).facts
    # Groups that the file does not name are nobody's business.
    assert facts.groups == {"staff"}
    assert admit_again(before, "operator", facts).facts == facts
    assert admit_again(_section(allow_people=("ann",)), "operator", facts).facts.roles == set()
    for now in (_section(allow_groups=("other",)), _section(allow_people=("bob",))):
        with raises_code("sign_in_not_allowed"):
            admit_again(now, "operator", facts)
    assert admit_again(_section(operator_groups=("staff",)), "operator", facts).operator
    elsewhere = OidcSection(issuer="https://evil.example", client_id="kaged", allow_everyone=True)
    with raises_code("sign_in_not_allowed"):
        admit_again(elsewhere, "operator", facts)
