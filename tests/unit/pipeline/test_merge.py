from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.pipeline import (
    SLOT_POLICIES,
    AgentExtension,
    CompletionExtension,
    DataPolicy,
    DelegationExtension,
    DelegationHop,
    DiscardedChange,
    Extensions,
    FrameworkExtension,
    HttpExtension,
    LLMExtension,
    MCPExtension,
    MetaExtension,
    MutabilityTier,
    ObjectSecurityProfile,
    ProvenanceExtension,
    RequestExtension,
    SecurityExtension,
    SlotName,
    SubjectExtension,
    SubjectType,
    TierViolationError,
    filter_extensions,
    merge_extensions,
)
from kaged.pipeline.delegation import MAX_HOPS
from kaged.pipeline.isolation import same_value
from kaged.pipeline.merge import MAX_HEADERS, MAX_LABELS
from kaged.pipeline.tiers import resolve_rights
from kaged.pipeline.view import ExtensionsView
from raising import raises_code
from requirements import requirement
from unit.pipeline.material import (
    ALL_CAPABILITIES,
    MOMENT,
    NO_CAPABILITIES,
    SLOT_NAMES,
    capability_sets,
    custom_dicts,
    extensions,
    full_extensions,
)

FIXED_SLOTS: dict[str, Any] = {
    "request": RequestExtension(environment="forged"),
    "agent": AgentExtension(agent_id="forged"),
    "mcp": MCPExtension(),
    "completion": CompletionExtension(model="forged"),
    "provenance": ProvenanceExtension(source="forged"),
    "llm": LLMExtension(model_id="forged"),
    "framework": FrameworkExtension(framework="forged"),
    "meta": MetaExtension(scope="forged"),
}
NEW_HOP = DelegationHop(subject_id="bob", subject_type="agent", timestamp=MOMENT)


def view_of(original: Extensions, *capabilities: str) -> Extensions:
    view = filter_extensions(original, frozenset(capabilities))
    assert view is not None
    return view


def merged_with(original: Extensions, output: Any, *capabilities: str) -> Extensions:
    merged = merge_extensions(original, output, frozenset(capabilities), "p")
    assert merged is not None
    return merged


def discards(original: Extensions, output: Any, *capabilities: str) -> list[DiscardedChange]:
    noted: list[DiscardedChange] = []
    merge_extensions(original, output, frozenset(capabilities), "p", noted)
    return noted


def relabelled(original: Extensions, labels: Any) -> Extensions:
    base = original.security or SecurityExtension()
    return original.model_copy(update={"security": base.model_copy(update={"labels": labels})})


def rechained(original: Extensions, **changes: Any) -> Extensions:
    base = original.delegation or DelegationExtension()
    return original.model_copy(update={"delegation": base.model_copy(update=changes)})


@requirement("EX-MERGE-01")
@pytest.mark.parametrize("capability", [None, *sorted(ALL_CAPABILITIES)])
def test_a_change_comes_through_exactly_where_tier_and_capability_allow(
    capability: str | None,
) -> None:
    original = full_extensions()
    held = [] if capability is None else [capability]
    assert original.delegation is not None
    changes = {
        **FIXED_SLOTS,
        "http": HttpExtension(headers={"x": "new"}),
        "security": relabelled(original, frozenset({"pii", "confidential", "new"})).security,
        "delegation": original.delegation.with_new_hop(NEW_HOP),
        "custom": {"mine": 1},
    }
    allowed = {
        "http": capability == "write_headers",
        "security": capability == "append_labels",
        "delegation": capability == "append_delegation",
        "custom": True,
    }
    assert changes.keys() == set(SLOT_NAMES)
    for name, value in changes.items():
        merged = merged_with(original, original.model_copy(update={name: value}), *held)
        if allowed.get(name, False):
            assert getattr(merged, name) == value, name
        else:
            assert merged is original, name


@requirement("EX-MERGE-02", "EX-TIER-02")
def test_changes_to_fixed_slots_are_left_out_even_with_every_capability() -> None:
    original = full_extensions()
    hostile = original.model_copy(update={**FIXED_SLOTS, "custom": {"mine": True}})
    merged = merged_with(original, hostile, *ALL_CAPABILITIES)
    assert merged is not original
    for name in FIXED_SLOTS:
        assert getattr(merged, name) is getattr(original, name)


@requirement("EX-MERGE-03", "EX-TIER-03")
def test_labels_may_grow_but_never_shrink() -> None:
    original = full_extensions()
    before = frozenset({"pii", "confidential"})
    more = before | {"new"}
    assert merged_with(original, relabelled(original, more), "append_labels").security == (
        relabelled(original, more).security
    )
    assert merged_with(original, relabelled(original, before), "append_labels") is original
    for fewer in ({"pii"}, {"other"}, set[str]()):
        with pytest.raises(TierViolationError, match=r"security\.labels"):
            merged_with(original, relabelled(original, frozenset(fewer)), "append_labels")
    grown = merged_with(
        original, rechained(original, chain=(*_chain(original), NEW_HOP)), "append_delegation"
    )
    assert grown.delegation is not None
    assert grown.delegation.chain == (*_chain(original), NEW_HOP)
    with pytest.raises(TierViolationError, match="shrank"):
        merged_with(original, rechained(original, chain=()), "append_delegation")


def _chain(ext: Extensions) -> tuple[DelegationHop, ...]:
    assert ext.delegation is not None
    return ext.delegation.chain


@requirement("EX-TIER-04", "EX-MERGE-06", "EX-SLOT-15")
@pytest.mark.parametrize("after", [{"only": 1}, {}, {"trace": "abc", "more": [1, {"a": 2}]}])
def test_custom_is_replaced_extended_and_emptied_by_anybody(after: dict[str, Any]) -> None:
    original = full_extensions()
    view = view_of(original)
    assert view.custom == original.custom
    merged = merged_with(original, view.model_copy(update={"custom": after}))
    assert merged.custom == after
    assert view_of(merged).custom == after


@requirement("EX-TIER-05")
def test_growth_is_measured_against_the_hosts_value_not_the_plugins() -> None:
    original = full_extensions()
    own = original.model_copy(update={"security": SecurityExtension(labels=frozenset({"mine"}))})
    with pytest.raises(TierViolationError):
        merged_with(original, own, "append_labels")
    # Without the append capability the labels were never visible; nothing is taken away either.
    assert merged_with(original, own) is original


@requirement("EX-MERGE-05")
def test_only_the_fields_a_plugin_may_write_are_taken() -> None:
    original = full_extensions()
    view = view_of(original, "write_headers")
    edited = view.model_copy(
        update={
            "http": HttpExtension(headers={"a": "b"}),
            "agent": AgentExtension(agent_id="forged"),
            "custom": {"mine": 1},
        }
    )
    merged = merged_with(original, edited, "write_headers")
    assert merged.http == HttpExtension(headers={"a": "b"})
    assert merged.custom == {"mine": 1}
    assert merged.agent is original.agent


@requirement("EX-MERGE-07", "EX-MERGE-09")
@given(original=extensions, capabilities=capability_sets, look=st.booleans())
def test_returning_the_view_unchanged_changes_nothing(
    original: Extensions, capabilities: frozenset[str], look: bool
) -> None:
    view = filter_extensions(original, capabilities)
    assert view is not None
    if look:
        view.model_dump()
    assert merge_extensions(original, view, capabilities, "p") is original
    assert merge_extensions(original, view.model_copy(), capabilities, "p") is original
    plain = Extensions(**dict(view))
    merged = merge_extensions(original, plain, capabilities, "p")
    assert merged == original


@requirement("EX-MERGE-10")
def test_no_output_changes_nothing_and_nothing_comes_from_no_extensions() -> None:
    original = full_extensions()
    assert merge_extensions(original, None, ALL_CAPABILITIES, "p") is original
    assert merge_extensions(None, original, ALL_CAPABILITIES, "p") is None


@requirement("EX-SLOT-06", "EX-CAP-08", "EX-CAP-09")
@pytest.mark.parametrize(
    ("capability", "sees", "writes"),
    [
        (None, False, False),
        ("read_headers", True, False),
        ("write_headers", True, True),
        ("read_agent", False, False),
    ],
)
def test_headers_need_read_headers_to_see_and_write_headers_to_change(
    capability: str | None, sees: bool, writes: bool
) -> None:
    original = full_extensions()
    held = [] if capability is None else [capability]
    view = view_of(original, *held)
    assert (view.http == original.http) is sees
    assert (view.http is None) is not sees
    changed = view.model_copy(update={"http": HttpExtension(headers={"a": "b"})})
    merged = merged_with(original, changed, *held)
    assert (merged.http == HttpExtension(headers={"a": "b"})) is writes
    assert (merged is original) is not writes


@requirement("EX-CAP-10", "EX-CAP-11")
def test_labels_need_read_labels_to_see_and_append_labels_to_add() -> None:
    original = full_extensions()
    more = frozenset({"pii", "confidential", "new"})
    for capability, adds in (("read_labels", False), ("append_labels", True)):
        view = view_of(original, capability)
        assert view.security is not None
        assert view.security.labels == frozenset({"pii", "confidential"})
        merged = merged_with(original, relabelled(view, more), capability)
        assert merged.security is not None
        assert (merged.security.labels == more) is adds
    with pytest.raises(TierViolationError):
        merged_with(original, relabelled(original, frozenset[str]()), "append_labels")
    assert merged_with(original, relabelled(original, frozenset[str]()), "read_labels") is original
    for swapped in (frozenset({"pii", "other"}), frozenset({"pii", "other", "new"})):
        with pytest.raises(TierViolationError):  # as many as before, or more: one is gone
            merged_with(original, relabelled(original, swapped), "append_labels")


@requirement("EX-SLOT-08", "EX-CAP-12", "EX-CAP-13")
def test_the_chain_needs_read_delegation_to_see_and_append_delegation_to_extend() -> None:
    original = full_extensions()
    assert view_of(original).delegation is None
    for capability, adds in (("read_delegation", False), ("append_delegation", True)):
        view = view_of(original, capability)
        assert view.delegation == original.delegation
        assert view.delegation is not None
        longer = view.model_copy(update={"delegation": view.delegation.with_new_hop(NEW_HOP)})
        merged = merged_with(original, longer, capability)
        assert (_chain(merged) == (*_chain(original), NEW_HOP)) is adds
    with pytest.raises(TierViolationError):
        merged_with(original, rechained(original, chain=()), "append_delegation")
    assert merged_with(original, rechained(original, chain=()), "read_delegation") is original


@requirement("EX-AMB-05")
def test_existing_hops_are_fixed_and_depth_and_origin_are_the_hosts() -> None:
    original = full_extensions()
    first = _chain(original)[0]
    second = NEW_HOP
    two = merged_with(original, rechained(original, chain=(first, second)), "append_delegation")
    for forged in (
        (second, first),
        (first.model_copy(update={"scopes_granted": ("everything",)}), second),
        (first, second.model_copy(update={"scopes_granted": ("everything",)})),
        (second,) * 2,
    ):
        with pytest.raises(TierViolationError, match="modified"):
            merged_with(two, rechained(two, chain=forged), "append_delegation")

    forged = rechained(
        original,
        chain=(first, second),
        depth=99,
        origin_subject_id="mallory",
        delegated=False,
        actor_subject_id="bob",
        age_seconds=7,
    )
    delegation = merged_with(original, forged, "append_delegation").delegation
    assert delegation is not None
    assert (delegation.depth, delegation.origin_subject_id, delegation.delegated) == (
        2,
        "alice",
        True,
    )
    assert (delegation.actor_subject_id, delegation.age_seconds) == ("bob", 7.0)

    only_lies = rechained(original, depth=99, origin_subject_id="mallory", delegated=False)
    assert merged_with(original, only_lies, "append_delegation") is original
    acted = merged_with(original, rechained(original, actor_subject_id=None), "append_delegation")
    assert acted.delegation is not None
    assert acted.delegation.actor_subject_id is None

    fresh = DelegationExtension(chain=(first,), depth=5, origin_subject_id="mallory")
    created = merged_with(Extensions(), Extensions(delegation=fresh), "append_delegation")
    assert created.delegation is not None
    assert (created.delegation.depth, created.delegation.origin_subject_id) == (1, "alice")


@requirement("EX-AMB-06")
def test_an_empty_slot_can_be_created_where_writing_is_allowed_and_nowhere_else() -> None:
    empty = Extensions()
    http = HttpExtension(headers={"a": "b"})
    assert merged_with(empty, Extensions(http=http), "write_headers").http == http
    assert merged_with(empty, Extensions(http=http), "read_headers") is empty
    whole = SecurityExtension(
        labels=frozenset({"a"}),
        classification="forged",
        subject=SubjectExtension(id="mallory", type=SubjectType.SYSTEM),
        objects={"o": ObjectSecurityProfile()},
        data={"d": DataPolicy()},
    )
    created = merged_with(empty, Extensions(security=whole), "append_labels")
    assert created.security == SecurityExtension(labels=frozenset({"a"}))
    assert merged_with(empty, Extensions(security=whole), "read_labels") is empty
    nothing = Extensions(security=SecurityExtension())
    assert merged_with(empty, nothing, "append_labels") is empty
    chain = DelegationExtension().with_new_hop(NEW_HOP)
    assert merged_with(empty, Extensions(delegation=chain), "append_delegation").delegation == chain
    assert merged_with(empty, Extensions(delegation=chain), "read_delegation") is empty
    bare = merged_with(empty, Extensions(delegation=DelegationExtension()), "append_delegation")
    assert bare.delegation == DelegationExtension()
    for name, value in FIXED_SLOTS.items():
        assert merged_with(empty, Extensions(**{name: value}), *ALL_CAPABILITIES) is empty


@requirement("EX-AMB-07")
def test_none_takes_nothing_away_except_from_custom() -> None:
    original = full_extensions()
    for name in ("http", "security", "delegation", *FIXED_SLOTS):
        blanked = view_of(original, *ALL_CAPABILITIES).model_copy(update={name: None})
        assert merged_with(original, blanked, *ALL_CAPABILITIES) is original
    for empty in (None, {}):
        cleared = view_of(original).model_copy(update={"custom": empty})
        assert merged_with(original, cleared).custom == empty
    assert merged_with(Extensions(), Extensions(custom=None)).custom is None
    fewer = HttpExtension(headers={"x-tenant": "t1"})
    dropped = view_of(original, "write_headers").model_copy(update={"http": fewer})
    assert merged_with(original, dropped, "write_headers").http == fewer


@requirement("EX-AMB-08")
def test_a_kept_reference_cannot_change_a_merged_value_later() -> None:
    original = full_extensions()
    view = view_of(original, *ALL_CAPABILITIES)
    headers = {"a": "b"}
    custom: dict[str, Any] = {"list": [1], "map": {"k": {"v": 1}}}
    http = HttpExtension.model_construct(headers=headers)
    edited = view.model_copy(update={"http": http, "custom": custom})
    merged = merged_with(original, edited, *ALL_CAPABILITIES)
    snapshot = copy.deepcopy(merged)

    headers["evil"] = "1"
    custom["list"].append("evil")
    custom["map"]["k"]["v"] = "evil"
    object.__setattr__(http, "headers", {"evil": "1"})
    for name in SLOT_NAMES:
        vars(edited)[name] = None

    assert merged == snapshot
    flat = {"plain": 1}
    small = merged_with(original, view.model_copy(update={"custom": flat}))
    flat["evil"] = 1
    assert small.custom == {"plain": 1}
    # The mappings of a view: read as any mapping, edited in vain.
    assert view.http is not None
    assert view.security is not None
    assert view.security.subject is not None
    assert view.custom is not None
    before = copy.deepcopy(original)
    for mapping, known in (
        (view.http.headers, "authorization"),
        (view.security.subject.claims, "iss"),
        (view.security.objects, "db"),
        (view.security.data, "db"),
        (view.custom, "trace"),
    ):
        table: dict[str, Any] = mapping
        assert {**table}[known] == table.get(known)
        edits: tuple[Callable[[], object], ...] = (
            lambda table=table: table.update(evil="1"),
            lambda table=table: dict.update(table, evil="1"),
            lambda table=table, known=known: table.pop(known),
            lambda table=table: dict.clear(table),
        )
        for edit in edits:
            try:
                edit()
            except TypeError:
                continue
    assert original == before
    assert merged == snapshot


@requirement("EX-AMB-15")
@pytest.mark.parametrize("bad", ["a\r\nx: y", "a\nb", "a\rb", "nul\0", {"not": "text"}, 5, None])
def test_unsafe_header_values_leave_the_old_headers_and_a_note(bad: Any) -> None:
    original = full_extensions()
    for headers in ({"x-new": bad}, {bad: "v"} if isinstance(bad, str) else {5: "v"}):
        http = HttpExtension.model_construct(headers=headers)
        edited = view_of(original, "write_headers").model_copy(update={"http": http})
        assert merged_with(original, edited, "write_headers") is original
        (note,) = discards(original, edited, "write_headers")
        assert note.slot == "http"
    odd = HttpExtension(headers={"X-MiXed": "As Written", "authorization": "ä ✓"})
    kept = merged_with(
        original,
        view_of(original, "write_headers").model_copy(update={"http": odd}),
        "write_headers",
    )
    assert kept.http == odd


def test_other_shapes_in_writable_slots_are_left_out_with_a_note() -> None:
    original = full_extensions()
    many_headers = HttpExtension(headers={str(n): "x" for n in range(MAX_HEADERS + 1)})
    odd: list[tuple[str, Any]] = [
        ("http", {"headers": {}}),
        ("http", HttpExtension.model_construct(headers=[])),
        ("http", many_headers),
        ("security", "labels"),
        ("security", SecurityExtension.model_construct(labels=5)),
        ("security", SecurityExtension.model_construct(labels=frozenset({5}))),
        ("security", SecurityExtension(labels=frozenset(map(str, range(MAX_LABELS + 1))))),
        ("delegation", ()),
        ("delegation", DelegationExtension.model_construct(chain="abc")),
        ("delegation", DelegationExtension.model_construct(chain=[*_chain(original), "hop"])),
        (
            "delegation",
            DelegationExtension.model_construct(chain=_chain(original) + (NEW_HOP,) * MAX_HOPS),
        ),
        (
            "delegation",
            DelegationExtension.model_construct(
                chain=(*_chain(original), DelegationHop.model_construct(subject_id=object()))
            ),
        ),
        (
            "delegation",
            DelegationExtension.model_construct(
                chain=(*_chain(original), DelegationHop.model_construct(subject_id=5))
            ),
        ),
        ("delegation", _delegation(original, actor_subject_id=5)),
        ("delegation", _delegation(original, age_seconds=-1)),
        ("delegation", _delegation(original, age_seconds=float("inf"))),
        ("delegation", _delegation(original, age_seconds="old")),
        ("custom", [1, 2]),
        ("custom", {1: "not text"}),
        ("custom", {"opaque": object()}),
    ]
    for name, value in odd:
        edited = original.model_copy(update={name: value})
        assert merged_with(original, edited, *ALL_CAPABILITIES) is original, value
        notes = discards(original, edited, *ALL_CAPABILITIES)
        assert any(note.slot.startswith(name) for note in notes), value
        assert all(note.reason for note in notes)


def _delegation(original: Extensions, **changes: Any) -> DelegationExtension:
    assert original.delegation is not None
    return original.delegation.model_copy(update=changes)


@requirement("EX-AMB-01")
def test_a_changed_fixed_slot_is_left_out_and_noted_once_without_values() -> None:
    original = full_extensions()
    for name, value in FIXED_SLOTS.items():
        edited = view_of(original, *ALL_CAPABILITIES).model_copy(update={name: value})
        (note,) = discards(original, edited, *ALL_CAPABILITIES)
        assert (note.slot, note.tier) == (name, MutabilityTier.IMMUTABLE)
        assert "forged" not in repr(note)
        assert merged_with(original, edited, *ALL_CAPABILITIES) is original


def test_each_fixed_part_of_security_is_noted_by_its_own_name() -> None:
    original = full_extensions()
    assert original.security is not None
    real = original.security
    forged = {
        "security.classification": {"classification": "public"},
        "security.objects": {"objects": {}},
        "security.data": {"data": {"x": DataPolicy()}},
        "security.subject": {"subject": SubjectExtension(id="mallory", type=SubjectType.USER)},
    }
    for slot, change in forged.items():
        edited = original.model_copy(update={"security": real.model_copy(update=change)})
        (note,) = discards(original, edited, *ALL_CAPABILITIES)
        assert note.slot == slot
    # Whoever may not see the subject cannot bring one either.
    guess = view_of(original).model_copy(
        update={
            "security": SecurityExtension(
                subject=SubjectExtension(id="mallory", type=SubjectType.USER),
                classification="restricted",
                objects=real.objects,
                data=real.data,
            )
        }
    )
    (note,) = discards(original, guess)
    assert note.slot == "security.subject"


@requirement("EX-AMB-17")
def test_discarded_changes_are_noted_per_slot_and_stay_silent_for_the_plugin() -> None:
    original = full_extensions()
    edited = original.model_copy(
        update={
            "http": HttpExtension(headers={"a": "b"}),
            "security": SecurityExtension(labels=frozenset({"mine"})),
            "delegation": DelegationExtension(),
            "agent": AgentExtension(agent_id="x"),
        }
    )
    noted = [note.slot for note in discards(original, edited)]
    assert sorted(set(noted)) == [
        "agent",
        "delegation",
        "http",
        "security.classification",
        "security.data",
        "security.labels",
        "security.objects",
    ]
    assert merged_with(original, edited) is original


@given(original=extensions, output=extensions, capabilities=capability_sets)
def test_nothing_changes_without_a_capability(
    original: Extensions, output: Extensions, capabilities: frozenset[str]
) -> None:
    """For any two containers and any rights: the merge touches writable slots only."""
    before = copy.deepcopy(original)
    rights = resolve_rights(capabilities)
    try:
        merged = merge_extensions(original, output, capabilities, "p")
    except TierViolationError as error:
        assert rights.may_write(SlotName(error.slot))  # noqa: PT017 - raising is not required here
        merged = original
    assert merged is not None
    assert original == before
    for name in SLOT_NAMES:
        if getattr(merged, name) != getattr(original, name):
            writable = [s for s in SLOT_POLICIES if s.value.split(".")[0] == name]
            assert any(rights.may_write(slot) for slot in writable)
    if merged.security is not None and original.security is not None:
        assert merged.security.labels >= original.security.labels
        assert merged.security.model_copy(update={"labels": None}) == (
            original.security.model_copy(update={"labels": None})
        )
    if original.delegation is not None:
        assert _chain(merged)[: len(_chain(original))] == _chain(original)


@given(original=extensions, output=extensions, capabilities=capability_sets)
def test_merging_twice_is_merging_once(
    original: Extensions, output: Extensions, capabilities: frozenset[str]
) -> None:
    try:
        once = merge_extensions(original, output, capabilities, "p")
        twice = merge_extensions(once, output, capabilities, "p")
    except TierViolationError:
        return
    assert once == twice


@given(
    original=extensions,
    first=st.frozensets(st.sampled_from("abcd")),
    second=st.frozensets(st.sampled_from("abcd")),
)
def test_the_order_of_two_plugins_that_add_labels_does_not_matter(
    original: Extensions, first: frozenset[str], second: frozenset[str]
) -> None:
    def add(current: Extensions, labels: frozenset[str]) -> Extensions:
        view = filter_extensions(current, frozenset({"append_labels"}))
        assert view is not None
        security = view.security or SecurityExtension()
        grown = security.model_copy(update={"labels": security.labels | labels})
        return merged_with(current, view.model_copy(update={"security": grown}), "append_labels")

    assert add(add(original, first), second) == add(add(original, second), first)


@given(before=custom_dicts, after=custom_dicts)
def test_custom_is_taken_exactly_when_it_differs_and_never_shared(
    before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    original = Extensions(custom=before)
    returned = Extensions().model_copy(update={"custom": after})
    merged = merged_with(original, returned)
    assert (merged is original) is same_value(after, before)
    assert same_value(merged.custom, after)
    assert after is None or merged.custom is not after


@pytest.mark.parametrize(
    ("before", "after"), [({"a": 1}, {"a": True}), ({"a": 1}, {"a": 1.0}), ({"a": 0}, {"b": 0})]
)
def test_values_that_only_look_alike_are_a_change(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    merged = merged_with(Extensions(custom=before), Extensions(custom=after))
    assert same_value(merged.custom, after)


def test_a_view_handed_in_as_the_original_keeps_what_it_shows() -> None:
    """A plugin may call the functions itself, with what it was given."""
    view = view_of(full_extensions())
    merged = merged_with(view, view.model_copy(update={"custom": {"b": 2}}))
    assert merged.custom == {"b": 2}
    assert merged.request == full_extensions().request


def test_a_view_of_an_older_call_is_read_as_a_whole() -> None:
    """Its untouched slots are the old call's; they must not pass for unchanged ones."""
    old = full_extensions(custom={"old": True})
    new = full_extensions(custom={"new": True})
    stale = view_of(old)
    assert merged_with(new, stale).custom == {"old": True}


def test_foreign_outputs_are_refused() -> None:
    original = full_extensions()
    with raises_code("pipeline_foreign_extensions", match="dict"):
        merged_with(original, {"custom": {}})
    with pytest.raises(AttributeError):
        merged_with(original, object.__new__(ExtensionsView))


def test_a_container_class_of_the_hosts_own_survives_a_merge() -> None:
    class Wider(Extensions):
        tenant: str | None = None

    original = Wider(tenant="t1", custom={"a": 1})
    merged = merged_with(original, Extensions(custom={"b": 2}))
    assert isinstance(merged, Wider)
    assert (merged.tenant, merged.custom) == ("t1", {"b": 2})
    unknown = Wider(tenant="forged", custom={"a": 1})
    assert merged_with(original, unknown) is original


def test_a_view_can_be_merged_into_when_a_program_passes_one_on() -> None:
    outer = view_of(full_extensions(), "write_headers")
    merged = merged_with(outer, outer.model_copy(update={"custom": {"b": 2}}), "write_headers")
    assert merged.custom == {"b": 2}
    assert merged.http == outer.http


def test_numbers_that_count_as_ages_are_taken_as_floats() -> None:
    original = full_extensions()

    class Odd(float):
        pass

    for age in (3, True, Odd(4.5)):
        merged = merged_with(original, rechained(original, age_seconds=age), "append_delegation")
        assert merged.delegation is not None
        assert type(merged.delegation.age_seconds) is float
    assert frozenset() == NO_CAPABILITIES


class OddText(str):
    """Claims to equal everything."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def test_headers_beside_the_hosts_own_are_looked_at_whatever_the_old_ones_hold() -> None:
    original = full_extensions()
    view = view_of(original, "write_headers")
    assert view.http is not None
    bad: list[dict[Any, Any]] = [
        {"x": None},
        {"x": 1},
        {"x\r": "y"},
        {"x": "y\n"},
        {"x": "y" * 70_000},
        {1: "y"},
    ]
    for added in bad:
        http = HttpExtension.model_construct(headers={**view.http.headers, **added})
        noted: list[DiscardedChange] = []
        output = view.model_copy(update={"http": http})
        merged = merge_extensions(original, output, frozenset({"write_headers"}), "p", noted)
        assert merged is original, added
        assert [change.slot for change in noted] == ["http"], added
    odd: list[dict[Any, Any]] = [{"x": "é\t"}, {"x": OddText("y")}, {OddText("x"): "y"}]
    for added in odd:
        http = HttpExtension.model_construct(headers={**view.http.headers, **added})
        output = view.model_copy(update={"http": http})
        merged = merged_with(original, output, "write_headers")
        assert merged.http is not None
        assert {type(text) for item in merged.http.headers.items() for text in item} == {str}
        assert len(merged.http.headers) == len(view.http.headers) + 1


def test_a_slot_that_was_read_is_compared_only_when_it_comes_back_as_another_object() -> None:
    original = full_extensions()
    view = view_of(original, *ALL_CAPABILITIES)
    noted: list[DiscardedChange] = []
    assert view.request is not None
    object.__setattr__(view.request, "environment", "forged")
    assert merge_extensions(original, view, ALL_CAPABILITIES, "p", noted) is original
    assert noted == []
    output = view.model_copy(update={"request": view.request.model_copy()})
    assert merge_extensions(original, output, ALL_CAPABILITIES, "p", noted) is original
    assert [change.slot for change in noted] == ["request"]


def test_a_custom_that_was_edited_in_place_is_taken() -> None:
    original = full_extensions()
    view = view_of(original)
    assert view.custom is not None
    view.custom["more"] = 1
    assert merged_with(original, view).custom == {**(original.custom or {}), "more": 1}


@requirement("EX-SLOT-08", "EX-AMB-05")
def test_a_hop_changed_in_place_stays_as_it_was_and_a_new_one_comes_behind_it() -> None:
    original = full_extensions()
    view = view_of(original, "append_delegation")
    assert view.delegation is not None
    vars(view.delegation.chain[0])["subject_id"] = "mallory"
    output = view.model_copy(update={"delegation": view.delegation.with_new_hop(NEW_HOP)})
    merged = merged_with(original, output, "append_delegation")
    assert [hop.subject_id for hop in _chain(merged)] == ["alice", "bob"]
    assert _chain(merged)[0] == _chain(original)[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject_id", 7),
        ("scopes_granted", (7,)),
        ("timestamp", object()),
        ("ttl_seconds", "soon"),
        ("from_cache", object()),
    ],
)
def test_a_new_hop_with_a_value_of_another_type_is_left_out(field: str, value: Any) -> None:
    original = full_extensions()
    view = view_of(original, "append_delegation")
    assert view.delegation is not None
    hop = NEW_HOP.model_copy(update={field: value})
    noted: list[DiscardedChange] = []
    output = view.model_copy(update={"delegation": view.delegation.with_new_hop(NEW_HOP)})
    assert output.delegation is not None
    chain = (*view.delegation.chain, hop)
    output = view.model_copy(
        update={"delegation": output.delegation.model_copy(update={"chain": chain})}
    )
    caps = frozenset({"append_delegation"})
    assert merge_extensions(original, output, caps, "p", noted) is original
    assert [change.slot for change in noted] == ["delegation"]


def test_a_new_hop_is_of_the_hosts_own_types_and_not_the_plugins_object() -> None:
    original = full_extensions()
    view = view_of(original, "append_delegation")
    assert view.delegation is not None
    for hop in (NEW_HOP, NEW_HOP.model_copy(update={"subject_id": OddText("bob")})):
        output = view.model_copy(update={"delegation": view.delegation.with_new_hop(hop)})
        merged = merged_with(original, output, "append_delegation")
        assert merged.delegation is not None
        added = merged.delegation.chain[-1]
        assert (added.subject_id, type(added.subject_id)) == ("bob", str)
        assert added is not hop
