from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from pydantic import Field

from kaged.pipeline import (
    Capability,
    Extensions,
    HttpExtension,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
    filter_extensions,
)
from kaged.pipeline.view import ExtensionsView
from requirements import requirement
from unit.pipeline.material import (
    ALL_CAPABILITIES,
    NO_CAPABILITIES,
    SLOT_NAMES,
    capability_sets,
    extensions,
    full_extensions,
)

GATED: dict[str, set[str]] = {
    "agent": {"read_agent"},
    "http": {"read_headers", "write_headers"},
    "delegation": {"read_delegation", "append_delegation"},
}
SUBJECT_PARTS = {
    "roles": "read_roles",
    "teams": "read_teams",
    "claims": "read_claims",
    "permissions": "read_permissions",
}
SUBJECT_READERS = {"read_subject", *SUBJECT_PARTS.values()}


def shown(original: Extensions, *capabilities: str) -> Extensions:
    view = filter_extensions(original, frozenset(capabilities))
    assert view is not None
    return view


def subject_of(view: Extensions) -> SubjectExtension | None:
    assert view.security is not None
    return view.security.subject


@requirement("EX-CAP-16")
@pytest.mark.parametrize("capability", [None, *sorted(ALL_CAPABILITIES)])
def test_unrestricted_slots_are_always_visible_and_gated_ones_by_capability(
    capability: str | None,
) -> None:
    original = full_extensions()
    view = shown(original, *([] if capability is None else [capability]))
    for name in SLOT_NAMES:
        value = getattr(view, name)
        if name in GATED:
            assert (value is not None) == (capability in GATED[name]), name
            if value is not None:
                assert value == getattr(original, name)
        elif name != "security":
            assert value == getattr(original, name), name
    assert view.security is not None


@requirement("EX-SLOT-05", "EX-CAP-07")
def test_agent_is_seen_only_with_read_agent() -> None:
    original = full_extensions()
    assert shown(original, *(ALL_CAPABILITIES - {"read_agent"})).agent is None
    assert shown(original, "read_agent").agent == original.agent


@requirement("EX-CAP-02")
def test_read_subject_shows_id_and_type_only() -> None:
    subject = subject_of(shown(full_extensions(), "read_subject"))
    assert subject == SubjectExtension(id="alice", type=SubjectType.USER)


@requirement("EX-CAP-03", "EX-CAP-04", "EX-CAP-05", "EX-CAP-06")
@pytest.mark.parametrize(("part", "capability"), SUBJECT_PARTS.items())
def test_a_subject_part_comes_with_its_capability_and_id_and_type(
    part: str, capability: str
) -> None:
    original = full_extensions()
    subject = subject_of(shown(original, capability))
    real = subject_of(original)
    assert subject is not None
    assert real is not None
    assert (subject.id, subject.type) == ("alice", SubjectType.USER)
    assert getattr(subject, part) == getattr(real, part) != type(getattr(real, part))()
    for other in SUBJECT_PARTS.keys() - {part}:
        assert not getattr(subject, other)


@requirement("EX-FILT-01")
@given(original=extensions, capabilities=capability_sets)
def test_a_view_is_a_new_object_that_shares_no_slot_with_its_source(
    original: Extensions, capabilities: frozenset[str]
) -> None:
    view = filter_extensions(original, capabilities)
    again = filter_extensions(original, capabilities)
    assert view is not None
    assert view is not original
    assert view is not again
    assert isinstance(view, Extensions)
    for name in SLOT_NAMES:
        value = getattr(view, name)
        if value is not None:
            assert value is not getattr(original, name)
            assert value is not getattr(again, name)
    if original.http is not None:
        assert (view.http is None) == capabilities.isdisjoint(GATED["http"])


@requirement("EX-FILT-02")
def test_hidden_slots_are_none_although_the_host_filled_them() -> None:
    view = shown(full_extensions())
    assert (view.agent, view.http, view.delegation) == (None, None, None)


@requirement("EX-FILT-03")
@given(original=extensions, capabilities=capability_sets)
def test_filtering_and_reading_leave_the_source_as_it_was(
    original: Extensions, capabilities: frozenset[str]
) -> None:
    before = copy.deepcopy(original)
    view = filter_extensions(original, capabilities)
    assert view is not None
    view.model_dump()
    assert original == before
    assert original.model_dump() == before.model_dump()


@requirement("EX-FILT-05", "EX-AMB-04")
def test_without_capabilities_security_shows_objects_data_and_classification_only() -> None:
    original = full_extensions()
    view = shown(original)
    real = original.security
    assert real is not None
    assert view.security == SecurityExtension(
        objects=real.objects, data=real.data, classification=real.classification
    )
    assert view.security is not None
    assert view.security.labels == frozenset()
    assert view.security.subject is None
    hidden = subject_of(shown(original, "read_subject"))
    assert hidden is not None
    assert (hidden.roles, hidden.teams, hidden.permissions) == (frozenset(),) * 3
    assert hidden.claims == {}
    assert shown(Extensions()).security is None


@requirement("EX-FILT-06")
@pytest.mark.parametrize("capability", sorted(ALL_CAPABILITIES))
def test_labels_are_seen_with_read_or_append_only(capability: str) -> None:
    original = full_extensions()
    security = shown(original, capability).security
    assert security is not None
    expected = capability in {"read_labels", "append_labels"}
    assert (security.labels == frozenset({"pii", "confidential"})) is expected
    assert (security.labels == frozenset()) is not expected


@requirement("EX-FILT-07")
@pytest.mark.parametrize("capability", sorted(ALL_CAPABILITIES))
def test_the_subject_is_seen_with_the_five_subject_capabilities_only(capability: str) -> None:
    subject = subject_of(shown(full_extensions(), capability))
    if capability in SUBJECT_READERS:
        assert subject is not None
        assert (subject.id, subject.type) == ("alice", SubjectType.USER)
    else:
        assert subject is None


@requirement("EX-FILT-08", "EX-FILT-09")
def test_roles_and_labels_show_exactly_that_and_nothing_of_the_rest() -> None:
    original = full_extensions()
    real = original.security
    assert real is not None
    view = shown(original, "read_roles", "read_labels")
    assert view.security == SecurityExtension(
        labels=real.labels,
        classification=real.classification,
        objects=real.objects,
        data=real.data,
        subject=SubjectExtension(id="alice", type=SubjectType.USER, roles=frozenset({"admin"})),
    )
    told = [repr(view), view.model_dump_json(), repr(view.model_dump())]
    told.append(repr(pickle.loads(pickle.dumps(view))))
    told.append(pickle.dumps(view).decode("latin-1"))
    for secret in ("payroll", "idp"):
        assert all(secret not in text for text in told)
    # db.read is also a public requirement of an object; as the subject's permission it is gone.
    assert view.model_dump()["security"]["subject"]["permissions"] == frozenset()


@requirement("EX-FILT-10")
def test_no_extensions_give_no_view() -> None:
    assert filter_extensions(None, ALL_CAPABILITIES) is None


@requirement("EX-SLOT-07")
def test_security_has_mixed_access_per_part() -> None:
    original = full_extensions()
    assert shown(original, *ALL_CAPABILITIES).security == original.security
    assert shown(original).security != original.security


@given(original=extensions)
def test_all_capabilities_show_everything_and_an_empty_container_stays_empty(
    original: Extensions,
) -> None:
    assert filter_extensions(original, ALL_CAPABILITIES) == original
    assert original == filter_extensions(original, ALL_CAPABILITIES)
    assert filter_extensions(Extensions(), NO_CAPABILITIES) == Extensions()


@given(original=extensions, few=capability_sets, more=capability_sets)
def test_more_capabilities_never_show_less(
    original: Extensions, few: frozenset[str], more: frozenset[str]
) -> None:
    small = filter_extensions(original, few)
    large = filter_extensions(original, few | more)
    assert small is not None
    assert large is not None
    for name in SLOT_NAMES:
        if getattr(small, name) is not None:
            assert getattr(large, name) is not None


def test_a_missing_subject_stays_missing_and_words_of_other_vocabularies_mean_nothing() -> None:
    original = Extensions(security=SecurityExtension(labels=frozenset({"a"})))
    assert subject_of(shown(original, "read_roles")) is None
    assert shown(original, "read:fs:/", "gog.email", "exec") == shown(original)
    assert shown(original, str(Capability.READ_LABELS)).security == original.security


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: v.http.headers.update(x="1"),
        lambda v: v.http.headers.__setitem__("x", "1"),
        lambda v: v.http.headers.pop("authorization"),
        lambda v: v.http.headers.clear(),
        lambda v: v.security.subject.claims.setdefault("x", "1"),
        lambda v: v.security.objects.__delitem__("db"),
        lambda v: v.security.objects["db"].permissions.append("x"),
        lambda v: v.security.data["db"].apply_labels.sort(),
        lambda v: v.mcp.tool.input_schema["properties"].popitem(),
        lambda v: v.framework.metadata["nested"]["list"].extend([3]),
        lambda v: v.agent.conversation.history.insert(0, 1),
        lambda v: v.agent.conversation.history[0].update(role="x"),
        lambda v: v.meta.properties.__ior__({"x": "1"}),
        lambda v: v.llm.capabilities.__iadd__(["x"]),
    ],
)
def test_in_place_edits_of_a_slot_are_refused_with_a_sentence(edit: Any) -> None:
    original = full_extensions()
    view = shown(original, *ALL_CAPABILITIES)
    with pytest.raises(TypeError, match="read-only; return a changed copy"):
        edit(view)
    assert original == full_extensions()
    assert view == full_extensions()


def test_read_only_parts_read_and_copy_like_ordinary_ones() -> None:
    view = shown(full_extensions(), *ALL_CAPABILITIES)
    assert view.http is not None
    headers = view.http.headers
    assert isinstance(headers, dict)
    assert {**headers}["x-tenant"] == headers.get("x-tenant") == "t1"
    for ordinary in (dict(headers), headers.copy(), copy.copy(headers), headers | {}):
        assert type(ordinary) is dict
        ordinary["new"] = "1"
    assert type(copy.deepcopy(headers)) is dict
    assert type(pickle.loads(pickle.dumps(headers))) is dict
    assert view.llm is not None
    names = view.llm.capabilities
    for ordinary_list in (list(names), names.copy(), copy.copy(names), names + []):  # noqa: RUF005 - tests the operator
        assert type(ordinary_list) is list
        ordinary_list.append("new")
    assert type(copy.deepcopy(names)) is list
    assert type(pickle.loads(pickle.dumps(names))) is list
    assert "new" not in headers
    assert names == ["tools"]


def test_custom_is_an_ordinary_private_dict() -> None:
    original = full_extensions()
    view = shown(original)
    assert type(view.custom) is dict
    view.custom["nested"]["list"].append("mine")
    assert original == full_extensions()


def test_a_view_copies_pickles_and_rebuilds_like_a_model() -> None:
    original = full_extensions()
    view = shown(original, *ALL_CAPABILITIES)
    for twin in (copy.copy(view), copy.deepcopy(view), view.model_copy(deep=True)):
        assert twin == view
    restored = pickle.loads(pickle.dumps(view))
    assert type(restored) is Extensions
    assert restored == original
    assert Extensions.model_validate(view.model_dump()) == original
    assert dict(view) == dict(original)
    assert repr(view).startswith("Extensions(")
    built = type(view)(custom={"a": 1})
    assert type(built) is Extensions
    assert built.custom == {"a": 1}
    assert ExtensionsView.model_validate({"custom": {"b": 2}}).custom == {"b": 2}
    object.__setattr__(view, "__dict__", dict.fromkeys(SLOT_NAMES))
    assert view == Extensions()


def test_a_view_of_a_view_shows_no_more_than_the_first() -> None:
    outer = shown(full_extensions(), "read_headers")
    inner = shown(outer, *ALL_CAPABILITIES)
    assert inner.http == outer.http
    assert inner.agent is None


def test_a_slot_class_of_the_hosts_own_is_copied_too() -> None:
    class OwnHttp(HttpExtension):
        tags: list[str] = Field(default_factory=list)

    class OwnSecurity(SecurityExtension):
        secret: str = "s3cret"

    own = OwnHttp(headers={"a": "b"}, tags=["x"])
    view = shown(Extensions(http=own), "read_headers")
    assert view.http == own
    with pytest.raises(TypeError):
        view.http.tags.append("y")  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue] - checked above
    assert own.tags == ["x"]
    # In a slot with rules per part, a part without a rule is hidden.
    assert "s3cret" not in repr(vars(shown(Extensions(security=OwnSecurity())).security))
