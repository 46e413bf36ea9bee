"""Read-only copies of single slots: the deep fields of each model, and what rights hide of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kaged.pipeline.isolation import (
    ReadOnlyDict,
    ReadOnlyList,
    freeze,
    isolate,
    model_dict,
    new_frozen,
    same_value,
)
from kaged.pipeline.slots import (
    AgentExtension,
    CompletionExtension,
    ConversationContext,
    DataPolicy,
    DelegationExtension,
    DelegationHop,
    FrameworkExtension,
    HttpExtension,
    LLMExtension,
    MCPExtension,
    MetaExtension,
    ObjectSecurityProfile,
    PromptMetadata,
    ProvenanceExtension,
    RequestExtension,
    ResourceMetadata,
    RetentionPolicy,
    SecurityExtension,
    Slot,
    SubjectExtension,
    TokenUsage,
    ToolMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kaged.pipeline.tiers import Rights

S = TypeVar("S", bound=Slot)

_NO_TEXTS: frozenset[str] = frozenset()


def copy_slot(slot: S) -> S:
    """Copy a slot so that the two share nothing that anybody could change."""
    deep = DEEP_FIELDS.get(type(slot))
    if deep is None:
        return freeze(slot)  # a subclass of the host's own making
    values = model_dict(slot).copy()
    for name, read_only in deep:
        value = values[name]
        if value is not None:
            values[name] = read_only(value)
    return new_frozen(type(slot), values)


def copy_custom(custom: Any, _rights: Rights) -> Any:
    """Copy the free-form slot into ordinary private containers; a plugin may edit its copy."""
    return isolate(custom)


def subject_as_shown(foreign: object, subject: SubjectExtension | None, rights: Rights) -> bool:
    """Return whether `foreign` equals what a holder of `rights` sees of `subject`."""
    if subject is None or not rights.subject:
        return foreign is None
    return same_value(foreign, _visible_subject(subject, rights))


def visible_security(security: SecurityExtension, rights: Rights) -> SecurityExtension:
    """Copy the security slot without the parts that `rights` does not show."""
    subject = security.subject
    if subject is not None:
        subject = _visible_subject(subject, rights) if rights.subject else None
    return new_frozen(
        SecurityExtension,
        {
            "labels": security.labels if rights.labels else _NO_TEXTS,
            "classification": security.classification,
            "subject": subject,
            "objects": _copy_table(security.objects),
            "data": _copy_table(security.data),
        },
    )


def _visible_subject(subject: SubjectExtension, rights: Rights) -> SubjectExtension:
    return new_frozen(
        SubjectExtension,
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
    return ReadOnlyDict({name: copy_slot(entry) for name, entry in table.items()})


def _copy_chain(chain: tuple[DelegationHop, ...]) -> tuple[DelegationHop, ...]:
    return tuple([copy_slot(hop) for hop in chain])


DEEP_FIELDS: dict[type[Slot], tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    RequestExtension: (),
    AgentExtension: (("conversation", copy_slot),),
    ConversationContext: (("history", freeze), ("topics", ReadOnlyList)),
    HttpExtension: (("headers", ReadOnlyDict),),
    SubjectExtension: (("claims", ReadOnlyDict),),
    ObjectSecurityProfile: (("permissions", ReadOnlyList), ("data_scope", ReadOnlyList)),
    DataPolicy: (
        ("apply_labels", ReadOnlyList),
        ("allowed_actions", ReadOnlyList),
        ("denied_actions", ReadOnlyList),
        ("retention", copy_slot),
    ),
    RetentionPolicy: (),
    DelegationExtension: (("chain", _copy_chain),),
    DelegationHop: (),
    MCPExtension: (("tool", copy_slot), ("resource", copy_slot), ("prompt", copy_slot)),
    ToolMetadata: (("input_schema", freeze), ("output_schema", freeze), ("annotations", freeze)),
    ResourceMetadata: (("annotations", freeze),),
    PromptMetadata: (("arguments", freeze), ("annotations", freeze)),
    CompletionExtension: (("tokens", copy_slot),),
    TokenUsage: (),
    ProvenanceExtension: (),
    LLMExtension: (("capabilities", ReadOnlyList),),
    FrameworkExtension: (("metadata", freeze),),
    MetaExtension: (("properties", ReadOnlyDict),),
}
"""For each slot model, the fields that hold containers or models, and how each is copied."""
