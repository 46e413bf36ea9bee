"""Who may use a credential: the project asks, the operator's lists decide."""

from __future__ import annotations

import pytest

from kaged.kernel.credential_grants import (
    AgentCage,
    CredentialGrant,
    ServerCage,
    decide_credential,
)

SHOP = AgentCage(frozenset({"prj_1", "shop", "/srv/shop"}), "primary.subagents.coder", "ann")


def test_nobody_may_use_a_credential_that_names_nobody() -> None:
    for user in (SHOP, ServerCage("files")):
        refused = decide_credential("github", CredentialGrant(), user)
        assert not refused.allowed
        assert refused.rule == "credential.grant"
        assert "[credentials.github.for]" in refused.remedy


def test_a_name_that_nobody_configured_is_told_from_one_that_is_not_granted() -> None:
    refused = decide_credential("github", None, SHOP)
    assert (refused.allowed, refused.rule) == (False, "credential.unknown")


@pytest.mark.parametrize("project", ["prj_1", "shop", "/srv/shop", "*"])
def test_a_project_is_named_by_id_name_or_folder(project: str) -> None:
    assert decide_credential("github", CredentialGrant(projects=(project,)), SHOP).allowed
    assert not decide_credential("github", CredentialGrant(projects=("shop2",)), SHOP).allowed


@pytest.mark.parametrize(
    ("narrowed", "allowed"),
    [
        ({"agents": ("primary.subagents.*",)}, True),
        ({"agents": ("primary",)}, False),
        ({"people": ("ann",)}, True),
        ({"people": ("bob",)}, False),
        ({"skills": ("deploy",)}, False),
        ({"skills": ("*",)}, True),
        ({"agents": ("primary.*",), "people": ("bob",)}, False),
    ],
)
def test_every_list_that_is_given_must_fit(
    narrowed: dict[str, tuple[str, ...]], allowed: bool
) -> None:
    grant = CredentialGrant(projects=("shop",), **narrowed)
    assert decide_credential("github", grant, SHOP).allowed is allowed


def test_an_agent_that_acts_for_nobody_known_is_no_person_of_the_list() -> None:
    nobody = AgentCage(frozenset({"shop"}), "primary")
    grant = CredentialGrant(projects=("shop",), people=("ann",))
    assert not decide_credential("github", grant, nobody).allowed


def test_projects_grant_nothing_to_servers() -> None:
    grant = CredentialGrant(projects=("*",), mcp=("files",))
    assert decide_credential("github", grant, ServerCage("files")).allowed
    assert not decide_credential("github", grant, ServerCage("shop")).allowed
