"""Read-only copies of single slots: the deep fields of each model, and what rights hide of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kaged.pipeline import slots
from kaged.pipeline.isolation import (
    ReadOnlyDict,
    ReadOnlyList,
    freeze,
    isolate,
    model_dict,
    new_frozen,
    same_value,
    set_model_dict,
)
from kaged.pipeline.lazy_slots import (
    FIELD_COUNTS,
    LazySlot,
    Makers,
    Slot,
    lazy_copy,
    whole_state,
)
from kaged.pipeline.tiers import Capability, Rights

S = TypeVar("S", bound=Slot)
L = TypeVar("L", bound=LazySlot)

_NO_TEXTS: frozenset[str] = frozenset()
_new = object.__new__


def copy_slot(slot: S, _rights: Rights | None = None) -> S:
    """Copy a slot so that the two share nothing that anybody could change."""
    kind = type(slot)
    deep = DEEP_FIELDS.get(kind)
    if deep is None:
        return freeze(slot)  # a subclass of the host's own making
    values = model_dict(slot).copy()
    for name, read_only in deep:
        value = values[name]
        if value is not None:
            values[name] = read_only(value)
    twin = _new(kind)
    set_model_dict(twin, values)
    return twin


def copy_lazily(slot: L) -> L:
    """Copy a slot as `copy_slot` does, but its deep parts when somebody looks at them."""
    kind = type(slot)
    makers = LAZY_FIELDS.get(kind)
    if makers is None:
        return freeze(slot)  # a subclass of the host's own making
    values = model_dict(slot)
    if len(values) < FIELD_COUNTS[kind]:
        values = whole_state(slot)
    values = values.copy()
    for name in makers:
        del values[name]
    return lazy_copy(slot, values, makers)


def copy_custom(custom: Any, _rights: Rights) -> Any:
    """Copy the free-form slot into ordinary private containers; a plugin may edit its copy."""
    return isolate(custom)


def subject_as_shown(
    foreign: object, subject: slots.SubjectExtension | None, rights: Rights
) -> bool:
    """Return whether `foreign` equals what a holder of `rights` sees of `subject`."""
    if subject is None or not rights.subject:
        return foreign is None
    return same_value(foreign, _visible_subject(subject, rights))


def visible_security(security: slots.SecurityExtension, rights: Rights) -> slots.SecurityExtension:
    """Copy the security slot without the parts that `rights` does not show."""
    values: dict[str, Any] = {
        "labels": security.labels if rights.labels else _NO_TEXTS,
        "classification": security.classification,
    }
    makers = _SECURITY_MAKERS.get(rights.capabilities) or _security_makers(rights)
    return lazy_copy(security, values, makers)


def _security_makers(rights: Rights) -> Makers:
    def subject(
        value: slots.SubjectExtension | None,
    ) -> slots.SubjectExtension | None:
        return _visible_subject(value, rights) if value is not None and rights.subject else None

    makers = {"subject": subject, "objects": _copy_table, "data": _copy_table}
    return _SECURITY_MAKERS.setdefault(rights.capabilities, makers)


_SECURITY_MAKERS: dict[frozenset[Capability], Makers] = {}
"""By capability set; as bounded as the table of rights."""


def _visible_subject(subject: slots.SubjectExtension, rights: Rights) -> slots.SubjectExtension:
    return new_frozen(
        slots.SubjectExtension,
        {
            "id": subject.id,
            "type": subject.type,
            "roles": subject.roles if rights.roles else _NO_TEXTS,
            "permissions": subject.permissions if rights.permissions else _NO_TEXTS,
            "teams": subject.teams if rights.teams else _NO_TEXTS,
            "claims": ReadOnlyDict(subject.claims if rights.claims else ()),
        },
    )


def _copy_table(table: Mapping[str, Slot]) -> ReadOnlyDict:
    return ReadOnlyDict([(name, copy_slot(entry)) for name, entry in table.items()])


def _copy_chain(chain: tuple[slots.DelegationHop, ...]) -> tuple[slots.DelegationHop, ...]:
    return tuple([copy_slot(hop) for hop in chain])


DEEP_FIELDS: dict[type[Slot], tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    slots.RequestExtension: (),
    slots.AgentExtension: (("conversation", copy_lazily),),
    slots.HttpExtension: (("headers", ReadOnlyDict),),
    slots.SubjectExtension: (("claims", ReadOnlyDict),),
    slots.ObjectSecurityProfile: (("permissions", ReadOnlyList), ("data_scope", ReadOnlyList)),
    slots.DataPolicy: (
        ("apply_labels", ReadOnlyList),
        ("allowed_actions", ReadOnlyList),
        ("denied_actions", ReadOnlyList),
        ("retention", copy_slot),
    ),
    slots.RetentionPolicy: (),
    slots.DelegationExtension: (("chain", _copy_chain),),
    slots.DelegationHop: (),
    slots.MCPExtension: (
        ("tool", copy_lazily),
        ("resource", copy_lazily),
        ("prompt", copy_lazily),
    ),
    slots.CompletionExtension: (("tokens", copy_slot),),
    slots.TokenUsage: (),
    slots.ProvenanceExtension: (),
    slots.LLMExtension: (("capabilities", ReadOnlyList),),
    slots.FrameworkExtension: (("metadata", freeze),),
    slots.MetaExtension: (("properties", ReadOnlyDict),),
}
"""For each slot model, the fields that hold containers or models, and how each is copied."""

LAZY_FIELDS: dict[type[LazySlot], Makers] = {
    slots.ConversationContext: {"history": freeze, "topics": freeze},
    slots.ToolMetadata: {"input_schema": freeze, "output_schema": freeze, "annotations": freeze},
    slots.ResourceMetadata: {"annotations": freeze},
    slots.PromptMetadata: {"arguments": freeze, "annotations": freeze},
}
"""For each lazy model but the security slot, the fields that are copied on sight, and how."""
