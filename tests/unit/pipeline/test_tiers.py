from __future__ import annotations

import pytest
from hypothesis import given

from kaged.pipeline import (
    SLOT_POLICIES,
    AccessPolicy,
    Capability,
    Extensions,
    MutabilityTier,
    SlotName,
    TierViolationError,
    filter_extensions,
    merge_extensions,
)
from kaged.pipeline.tiers import resolve_rights
from requirements import requirement
from unit.pipeline.material import (
    ALL_CAPABILITIES,
    SLOT_NAMES,
    capability_sets,
    extensions,
    full_extensions,
)

IMMUTABLE = {
    "request",
    "agent",
    "provenance",
    "completion",
    "llm",
    "framework",
    "mcp",
    "meta",
    "security.subject",
    "security.subject.roles",
    "security.subject.teams",
    "security.subject.claims",
    "security.subject.permissions",
    "security.objects",
    "security.data",
    "security.classification",
}


@requirement("EX-AMB-03")
def test_the_policy_table_gives_each_slot_its_tier_and_guards_http() -> None:
    tiers = {name.value: policy.tier for name, policy in SLOT_POLICIES.items()}
    guarded = tiers.pop("http")
    assert guarded in set(MutabilityTier)
    assert {n for n, tier in tiers.items() if tier is MutabilityTier.IMMUTABLE} == IMMUTABLE
    assert {n for n, tier in tiers.items() if tier is MutabilityTier.MONOTONIC} == {
        "security.labels",
        "delegation",
    }
    assert {n for n, tier in tiers.items() if tier is MutabilityTier.MUTABLE} == {"custom"}

    original = full_extensions()
    for capabilities, accepted in ((["write_headers"], True), (["read_headers"], False)):
        held = frozenset(capabilities)
        view = filter_extensions(original, held)
        assert view is not None
        assert view.http is not None
        edited = view.model_copy(
            update={"http": view.http.model_copy(update={"headers": {"only": "this"}})}
        )
        merged = merge_extensions(original, edited, held, "p")
        assert merged is not None
        assert merged.http is not None
        assert (merged.http.headers == {"only": "this"}) is accepted


@requirement("EX-TIER-01")
def test_a_plugin_that_changes_everything_alters_only_what_tier_and_capability_allow() -> None:
    original = full_extensions()
    hostile = full_extensions(
        request=None,
        custom={"mine": True},
        http=full_extensions().http,
    ).model_copy(
        update={
            name: getattr(original, name).model_copy(
                update=dict.fromkeys(type(getattr(original, name)).model_fields, "changed")
            )
            for name in ("request", "agent", "completion", "provenance", "llm", "meta", "framework")
        }
    )
    merged = merge_extensions(original, hostile, frozenset(), "p")
    assert merged is not None
    for name in SLOT_NAMES:
        if name == "custom":
            assert merged.custom == {"mine": True}
        else:
            assert getattr(merged, name) is getattr(original, name)
    assert set(SLOT_POLICIES.values()) >= {SLOT_POLICIES[SlotName.CUSTOM]}


def test_access_follows_from_the_read_capability() -> None:
    assert SLOT_POLICIES[SlotName.REQUEST].access is AccessPolicy.UNRESTRICTED
    assert SLOT_POLICIES[SlotName.HTTP].access is AccessPolicy.CAPABILITY_GATED


def test_rights_answer_for_every_path_and_say_no_to_unknown_ones() -> None:
    rights = resolve_rights(frozenset({"write_headers", "append_labels"}))
    assert rights.may_read(SlotName.HTTP)
    assert rights.may_write(SlotName.HTTP)
    assert rights.may_write(SlotName.CUSTOM)
    assert rights.may_read(SlotName.REQUEST)
    assert not rights.may_write(SlotName.REQUEST)
    assert not rights.may_read(SlotName.AGENT)
    assert not rights.may_write(SlotName.DELEGATION)
    # The whole security slot has no row of its own; only its parts do.
    assert not rights.may_read(SlotName.SECURITY)
    assert not rights.may_write(SlotName.SECURITY)


def test_equal_sets_share_their_rights_and_foreign_names_give_nothing() -> None:
    held = frozenset({"read_headers"})
    assert resolve_rights(held) is resolve_rights(frozenset(["read_headers"]))
    assert resolve_rights(held | {"exec", "read:fs:/"}) == resolve_rights(held)
    assert resolve_rights(frozenset({Capability.READ_HEADERS})) is resolve_rights(held)
    for number in range(100):
        assert resolve_rights(frozenset({f"no-{number}"})).capabilities == frozenset()


@given(original=extensions, capabilities=capability_sets)
def test_rights_say_exactly_what_a_view_shows(
    original: Extensions, capabilities: frozenset[str]
) -> None:
    rights = resolve_rights(capabilities)
    view = filter_extensions(original, capabilities)
    assert view is not None
    for slot in SLOT_POLICIES:
        if "." not in slot.value and getattr(original, slot.value) is not None:
            assert (getattr(view, slot.value) is not None) is rights.may_read(slot)


def test_a_violation_names_plugin_slot_tier_and_detail() -> None:
    error = TierViolationError("p", SlotName.DELEGATION, MutabilityTier.MONOTONIC, "shrank")
    assert (error.plugin_name, error.slot, error.tier, error.detail) == (
        "p",
        "delegation",
        "monotonic",
        "shrank",
    )
    for word in ("p", "delegation", "monotonic", "shrank"):
        assert word in str(error)
    with pytest.raises(TierViolationError):
        raise error


def test_all_capabilities_means_all_rights() -> None:
    rights = resolve_rights(ALL_CAPABILITIES)
    assert all(rights.may_read(slot) for slot in SLOT_POLICIES)
