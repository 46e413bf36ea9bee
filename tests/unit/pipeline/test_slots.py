from __future__ import annotations

from datetime import UTC, datetime
from types import UnionType
from typing import Any, Union, get_args, get_origin
from unittest.mock import ANY

import pytest
from pydantic import BaseModel, ValidationError

from kaged import pipeline
from kaged.pipeline import (
    SLOT_POLICIES,
    DelegationExtension,
    DelegationHop,
    Extensions,
    HttpExtension,
    RequestExtension,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
    filter_extensions,
)
from kaged.pipeline.copies import DEEP_FIELDS, LAZY_FIELDS
from kaged.pipeline.isolation import new_frozen
from kaged.pipeline.lazy_slots import LazySlot
from kaged.pipeline.slots import Slot
from requirements import requirement
from unit.pipeline.material import (
    ALL_CAPABILITIES,
    MOMENT,
    NO_CAPABILITIES,
    SLOT_NAMES,
    full_extensions,
)

FIELDS: dict[str, tuple[str, ...]] = {
    "RequestExtension": ("environment", "request_id", "timestamp", "trace_id", "span_id"),
    "AgentExtension": (
        "input",
        "session_id",
        "conversation_id",
        "turn",
        "agent_id",
        "parent_agent_id",
        "conversation",
    ),
    "HttpExtension": ("headers",),
    "SecurityExtension": ("labels", "classification", "subject", "objects", "data"),
    "SubjectExtension": ("id", "type", "roles", "permissions", "teams", "claims"),
    "DelegationExtension": (
        "chain",
        "depth",
        "origin_subject_id",
        "actor_subject_id",
        "delegated",
        "age_seconds",
    ),
    "MCPExtension": ("tool", "resource", "prompt"),
    "CompletionExtension": (
        "stop_reason",
        "tokens",
        "model",
        "raw_format",
        "created_at",
        "latency_ms",
    ),
    "ProvenanceExtension": ("source", "message_id", "parent_id"),
    "LLMExtension": ("model_id", "provider", "capabilities"),
    "FrameworkExtension": (
        "framework",
        "framework_version",
        "node_id",
        "graph_id",
        "metadata",
    ),
    "MetaExtension": ("tags", "scope", "properties"),
}
REQUIRED = {"SubjectExtension": {"id", "type"}}


@requirement("EX-SLOT-01")
def test_extensions_is_a_frozen_model_whose_twelve_slots_default_to_none() -> None:
    assert issubclass(Extensions, BaseModel)
    assert Extensions.model_config.get("frozen") is True
    empty = Extensions()
    assert [getattr(empty, name) for name in SLOT_NAMES] == [None] * 12
    assert full_extensions() == full_extensions()
    assert full_extensions() != Extensions()
    assert Extensions() != "something else"
    assert (Extensions() == "something else") is False
    assert Extensions() == ANY, "what else there is has its own say"


@requirement("EX-SLOT-02")
def test_assignment_fails_everywhere_and_a_copy_leaves_the_original_alone() -> None:
    original = full_extensions()
    view = filter_extensions(original, ALL_CAPABILITIES)
    assert view is not None
    for container in (original, view):
        with pytest.raises(ValidationError):
            container.custom = {}
        for name in SLOT_NAMES[:-1]:
            slot = getattr(container, name)
            with pytest.raises(ValidationError):
                setattr(slot, next(iter(type(slot).model_fields)), "x")
    for model in DEEP_FIELDS:
        assert model.model_config.get("frozen") is True

    copy = original.model_copy(update={"custom": {"trace_id": "abc-123"}})

    assert copy.custom == {"trace_id": "abc-123"}
    assert original.custom is not None
    assert "trace_id" not in original.custom


@requirement("EX-SLOT-03")
def test_a_populated_slot_reads_back_typed_values() -> None:
    ext = Extensions(
        request=RequestExtension(environment="production", request_id="req-001"),
        security=SecurityExtension(labels=frozenset({"pii", "confidential"})),
    )

    assert ext.request is not None
    assert (ext.request.environment, ext.request.request_id) == ("production", "req-001")
    assert ext.security is not None
    assert ext.security.labels == frozenset({"pii", "confidential"})
    assert type(ext.security.labels) is frozenset
    assert ext.http is None


@requirement(
    "EX-SLOT-04",
    "EX-SLOT-09",
    "EX-SLOT-10",
    "EX-SLOT-11",
    "EX-SLOT-12",
    "EX-SLOT-13",
    "EX-SLOT-14",
)
def test_unrestricted_slots_are_seen_whole_without_any_capability() -> None:
    original = full_extensions()
    view = filter_extensions(original, NO_CAPABILITIES)
    assert view is not None
    for name, model in (
        ("request", pipeline.RequestExtension),
        ("mcp", pipeline.MCPExtension),
        ("completion", pipeline.CompletionExtension),
        ("provenance", pipeline.ProvenanceExtension),
        ("llm", pipeline.LLMExtension),
        ("framework", pipeline.FrameworkExtension),
        ("meta", pipeline.MetaExtension),
    ):
        assert type(getattr(view, name)) is model
        assert getattr(view, name) == getattr(original, name)


@requirement("EX-SLOT-16")
def test_every_slot_has_a_policy_and_one_without_stays_hidden() -> None:
    class Wider(Extensions):
        secret: str | None = None

    named = {name.value.split(".")[0] for name in SLOT_POLICIES}
    assert named == set(SLOT_NAMES)
    assert named != set(Wider.model_fields), "the table test notices a slot without a policy"

    view = filter_extensions(Wider(secret="s3cret", custom={"a": 1}), ALL_CAPABILITIES)

    assert view is not None
    assert getattr(view, "secret", None) is None
    assert "s3cret" not in repr(view)
    assert "s3cret" not in view.model_dump_json()
    assert "s3cret" not in str(vars(view))
    with pytest.raises(AttributeError):
        _ = view.no_such_thing  # pyright: ignore[reportAttributeAccessIssue] - that is the point


@requirement("EX-AMB-14")
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_slot_fields_are_the_listed_ones_and_unknown_keywords_are_ignored(name: str) -> None:
    model: type[BaseModel] = getattr(pipeline, name)
    required = REQUIRED.get(name, set())
    assert tuple(model.model_fields) == FIELDS[name]
    assert {n for n, f in model.model_fields.items() if f.is_required()} == required
    given: dict[str, Any] = {"id": "a", "type": "user"} if required else {}
    assert not hasattr(model(**given, no_such_field=1), "no_such_field")


def test_sets_and_enums_are_taken_from_lists_and_texts() -> None:
    subject = SubjectExtension.model_validate({"id": "a", "type": "agent", "roles": ["x", "x"]})
    assert subject.type is SubjectType.AGENT
    assert subject.roles == frozenset({"x"})
    with pytest.raises(ValidationError):
        SubjectExtension.model_validate({"id": "a", "type": "robot"})
    with pytest.raises(ValidationError):
        pipeline.ConversationContext(history=[{}] * 101)


def test_a_new_hop_goes_to_the_end_of_the_chain() -> None:
    first = DelegationHop(subject_id="alice", subject_type="user")
    one = DelegationExtension().with_new_hop(first)
    assert (one.chain, one.depth, one.delegated) == ((first,), 1, True)
    assert (one.origin_subject_id, one.actor_subject_id, one.age_seconds) == ("alice", "alice", 0.0)

    old = DelegationHop(subject_id="alice", subject_type="user", timestamp=MOMENT)
    naive = old.model_copy(update={"timestamp": MOMENT.replace(tzinfo=None)})
    for start in (old, naive):
        two = DelegationExtension(chain=(start,), depth=1, origin_subject_id="alice").with_new_hop(
            DelegationHop(subject_id="bob", subject_type="agent")
        )
        assert (two.depth, two.origin_subject_id, two.actor_subject_id) == (2, "alice", "bob")
        assert two.age_seconds > 0
    ahead = old.model_copy(update={"timestamp": datetime(9000, 1, 1, tzinfo=UTC)})
    assert DelegationExtension(chain=(ahead,), depth=1).with_new_hop(first).age_seconds == 0.0


def test_the_copy_table_names_every_field_that_holds_a_container_or_a_model() -> None:
    """A field that is missing there would be shared between the host and all plugins."""
    listed_of = {model: {name for name, _ in deep} for model, deep in DEEP_FIELDS.items()}
    listed_of |= {model: set(makers) for model, makers in LAZY_FIELDS.items()}
    for model, listed in listed_of.items():
        needed = {name for name, field in model.model_fields.items() if _is_deep(field.annotation)}
        assert listed == needed, model
    ours = {m for m in _all_slots(Slot) if m.__module__.startswith("kaged.")}
    inner = ours - {SecurityExtension, LazySlot}
    assert set(listed_of) == inner


def test_absent_state_of_a_light_copy_reads_like_that_of_any_model() -> None:
    http = HttpExtension(headers={"a": "b"})
    view = filter_extensions(Extensions(http=http), ALL_CAPABILITIES)
    assert view is not None
    shown = view.http
    assert shown is not None
    assert shown.model_extra is None
    assert shown.model_fields_set == {"headers"}
    assert shown.model_dump(exclude_unset=True) == {"headers": {"a": "b"}}
    assert view.model_fields_set == {"http"}
    with pytest.raises(AttributeError):
        _ = shown.nothing  # pyright: ignore[reportAttributeAccessIssue] - that is the point


def _is_deep(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_is_deep(part) for part in get_args(annotation))
    if origin is tuple:
        return _is_deep(get_args(annotation)[0])
    if origin is frozenset:
        return False
    return origin in (dict, list) or (isinstance(annotation, type) and issubclass(annotation, Slot))


def _all_slots(base: type[Slot]) -> set[type[Slot]]:
    found = set(base.__subclasses__())
    return found.union(*(_all_slots(model) for model in found)) if found else found


def test_a_changed_copy_knows_its_set_fields_whether_it_comes_from_a_view_or_not() -> None:
    made = HttpExtension.model_validate({"headers": {"a": "1"}})
    assert made.model_copy().model_fields_set == {"headers"}
    subject = SubjectExtension.model_validate({"id": "u", "type": "user"})
    twin = subject.model_copy(update={"roles": frozenset({"r"})})
    assert twin.model_fields_set == {"id", "type", "roles"}
    assert subject.model_fields_set == {"id", "type"}
    light = new_frozen(HttpExtension, {"headers": {"a": "1"}})
    assert light.model_copy(update={"headers": {}}).model_fields_set == set()
    deep = made.model_copy(deep=True)
    assert deep == made
    assert deep.headers is not made.headers
