"""After a plugin ran: accept back only the changes that it was allowed to make.

Everything a plugin returns is read once, below any override, and rebuilt from exact values before
it is compared or kept. So nothing of the plugin's own making, neither an object it still holds nor
a class with odd ideas of equality, gets into the authoritative extensions or a hand on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from kaged.base.errors import KagedError
from kaged.pipeline.copies import subject_as_shown
from kaged.pipeline.isolation import (
    ATOMS,
    NotIsolable,
    exact_text,
    isolate_data,
    model_dict,
    new_frozen,
    same_value,
    set_model_dict,
)
from kaged.pipeline.slots import (
    DelegationExtension,
    DelegationHop,
    Extensions,
    HttpExtension,
    SecurityExtension,
)
from kaged.pipeline.tiers import (
    RESOLVED,
    SLOT_POLICIES,
    MutabilityTier,
    Rights,
    SlotName,
    TierViolationError,
    resolve_rights,
)
from kaged.pipeline.view import ExtensionsView, origin_of, read_all

MAX_HEADERS = 256
MAX_HEADER_CHARS = 64 * 1024
MAX_LABELS = 1024
MAX_LABEL_CHARS = 1024
MAX_HOPS = 256

_NOBODY = "it cannot be changed"


@dataclass(frozen=True, slots=True)
class DiscardedChange:
    """A change that did not come through: where, under which tier and why; never the values."""

    slot: str
    tier: MutabilityTier
    reason: str


def merge_extensions(
    original: Extensions | None,
    plugin_output: object,
    capabilities: frozenset[str] | Rights,
    plugin_name: str,
    discarded: list[DiscardedChange] | None = None,
) -> Extensions | None:
    """Return `original` with the accepted changes of a plugin; itself when there are none.

    Changes without the capability and changes of fixed slots are left out silently; `discarded`
    gets to know which.

    Raises:
        TierViolationError: a holder of an append capability took something away; then nothing of
            the output counts.
        KagedError: `pipeline_foreign_extensions`; `plugin_output` is no `Extensions` at all.
    """
    if original is None or plugin_output is None:
        return original
    rights = (
        capabilities
        if isinstance(capabilities, Rights)
        else RESOLVED.get(capabilities) or resolve_rights(capabilities)
    )
    if type(plugin_output) is ExtensionsView:
        # Slots of the plugin's own view that nobody looked at or replaced cannot have changed. A
        # view of something else (of an older call, say) promises no such thing.
        fresh = origin_of(plugin_output)[0] is original
        touched = model_dict(plugin_output) if fresh else read_all(plugin_output)
    elif isinstance(plugin_output, Extensions):
        touched = model_dict(plugin_output)
    else:
        raise KagedError(
            f"plugin {plugin_name!r} returned {type(plugin_output).__name__}"
            " as modified_extensions",
            code="pipeline_foreign_extensions",
            fix="return Extensions, made with model_copy from what the hook was given",
            plugin=plugin_name,
        )
    if discarded is None:
        discarded = []
    values: dict[str, Any] | None = None
    for name, returned in touched.items():
        if returned is None and name != "custom":
            continue
        handle = _HANDLERS.get(name)
        if handle is None:
            continue
        value = handle(original, returned, rights, plugin_name, discarded)
        if value is not _UNCHANGED:
            if values is None:
                values = model_dict(original).copy()
            values[name] = value
    if values is None:
        return original
    if type(original) is Extensions:
        merged = _new(Extensions)
        set_model_dict(merged, values)
        return merged
    # The host's own subclass, or a view that somebody hands in as the original.
    own = model_dict(original)
    return original.model_copy(
        update={name: value for name, value in values.items() if own.get(name, own) is not value}
    )


def _merge_http(
    original: Extensions,
    returned: object,
    rights: Rights,
    _plugin_name: str,
    discarded: list[DiscardedChange],
) -> object:
    if not isinstance(returned, HttpExtension):
        return _discard(discarded, SlotName.HTTP, "not an HttpExtension")
    try:
        headers = _parse_headers(model_dict(returned).get("headers"))
    except ValidationError:
        return _discard(discarded, SlotName.HTTP, "headers are texts without CR, LF and NUL")
    http = original.http
    if http is not None and headers == http.headers:
        return _UNCHANGED
    if not rights.write_headers:
        return _discard(discarded, SlotName.HTTP, "write_headers is not granted")
    accepted = _new(HttpExtension)
    set_model_dict(accepted, {"headers": headers})
    return accepted


def _merge_security(
    original: Extensions,
    returned: object,
    rights: Rights,
    plugin_name: str,
    discarded: list[DiscardedChange],
) -> object:
    if not isinstance(returned, SecurityExtension):
        return _discard(discarded, SlotName.SECURITY_LABELS, "not a SecurityExtension")
    security = original.security or _NO_SECURITY
    state = model_dict(returned)
    _note_fixed_security(security, state, rights, discarded)
    try:
        labels = _parse_labels(state.get("labels"))
    except ValidationError:
        return _discard(discarded, SlotName.SECURITY_LABELS, "labels are short texts")
    before = security.labels
    if not rights.append_labels:
        if labels != (before if rights.labels else frozenset()):
            _discard(discarded, SlotName.SECURITY_LABELS, "append_labels is not granted")
        return _UNCHANGED
    if not labels >= before:
        raise _violation(
            plugin_name, SlotName.SECURITY_LABELS, f"{len(before - labels)} label(s) were removed"
        )
    if labels == before:
        return _UNCHANGED
    return new_frozen(SecurityExtension, model_dict(security) | {"labels": labels})


def _note_fixed_security(
    security: SecurityExtension,
    state: dict[str, Any],
    rights: Rights,
    discarded: list[DiscardedChange],
) -> None:
    """Note changes to the parts of security that nobody may change."""
    if not same_value(state.get("classification"), security.classification):
        _discard(discarded, SlotName.SECURITY_CLASSIFICATION, _NOBODY)
    if not same_value(state.get("objects"), security.objects):
        _discard(discarded, SlotName.SECURITY_OBJECTS, _NOBODY)
    if not same_value(state.get("data"), security.data):
        _discard(discarded, SlotName.SECURITY_DATA, _NOBODY)
    if not subject_as_shown(state.get("subject"), security.subject, rights):
        _discard(discarded, SlotName.SECURITY_SUBJECT, _NOBODY)


def _merge_delegation(
    original: Extensions,
    returned: object,
    rights: Rights,
    plugin_name: str,
    discarded: list[DiscardedChange],
) -> object:
    if not isinstance(returned, DelegationExtension):
        return _discard(discarded, SlotName.DELEGATION, "not a DelegationExtension")
    delegation = original.delegation
    if not rights.append_delegation:
        if not same_value(returned, delegation if rights.delegation else None):
            _discard(discarded, SlotName.DELEGATION, "append_delegation is not granted")
        return _UNCHANGED
    state = model_dict(returned)
    before = () if delegation is None else delegation.chain
    chain = _grown_chain(before, state.get("chain"), plugin_name)
    actor = exact_text(state.get("actor_subject_id"))
    age = _parse_age(state.get("age_seconds"))
    bad_actor = actor is None and state.get("actor_subject_id") is not None
    if chain is None or age is None or bad_actor:
        return _discard(
            discarded, SlotName.DELEGATION, "not a chain of hops with an actor and an age"
        )
    # Equal chain, actor and age is no change, whatever is claimed about the derived rest.
    if delegation is not None and (len(chain), actor, age) == (
        len(before),
        delegation.actor_subject_id,
        delegation.age_seconds,
    ):
        return _UNCHANGED
    origin = None if delegation is None else delegation.origin_subject_id
    values: dict[str, Any] = {
        "chain": chain,
        "depth": len(chain),
        "origin_subject_id": origin or (chain[0].subject_id if chain else None),
        "actor_subject_id": actor,
        "delegated": bool(chain),
        "age_seconds": age,
    }
    return new_frozen(DelegationExtension, values)


def _grown_chain(
    before: tuple[DelegationHop, ...], returned: object, plugin_name: str
) -> tuple[DelegationHop, ...] | None:
    """Return the chain before with the new hops behind it; None when the return is no chain."""
    if isinstance(returned, tuple):
        hops: list[object] = list(tuple.__iter__(returned))
    elif isinstance(returned, list):
        hops = list(list.__iter__(returned))
    else:
        return None
    if len(hops) < len(before):
        raise _violation(
            plugin_name,
            SlotName.DELEGATION,
            f"the chain shrank from {len(before)} to {len(hops)} hops",
        )
    for kept, hop in zip(before, hops, strict=False):
        if not same_value(hop, kept):
            raise _violation(plugin_name, SlotName.DELEGATION, "existing hops were modified")
    if len(hops) > MAX_HOPS:
        return None
    chain = list(before)
    for hop in hops[len(before) :]:
        parsed = _parse_hop(hop)
        if parsed is None:
            return None
        chain.append(parsed)
    return tuple(chain)


def _merge_custom(
    original: Extensions,
    returned: object,
    _rights: Rights,
    _plugin_name: str,
    discarded: list[DiscardedChange],
) -> object:
    before = original.custom
    if returned is None:
        return _UNCHANGED if before is None else None
    if type(returned) is not dict:
        return _merge_odd_custom(before, returned, discarded)
    # Mostly a small dict of atoms: copied first, then looked at once. Anything else starts anew.
    after = returned.copy()
    same = before is not None and len(before) == len(after)
    for name, item in after.items():
        kind = type(item)
        if type(name) is not str or kind not in ATOMS:
            return _merge_odd_custom(before, returned, discarded)
        if same:
            other = before.get(name, _UNCHANGED)  # pyright: ignore[reportOptionalMemberAccess] - `same` says so
            same = type(other) is kind and item == other
    return _UNCHANGED if same else after


def _merge_odd_custom(
    before: dict[str, Any] | None, returned: object, discarded: list[DiscardedChange]
) -> object:
    """Isolate and compare a `custom` that holds more than atoms, or is no plain dict."""
    try:
        after = isolate_data(returned)
    except NotIsolable as error:
        return _discard(discarded, SlotName.CUSTOM, error.message)
    if type(after) is not dict:
        return _discard(discarded, SlotName.CUSTOM, "not a dict")
    for key in after:
        if type(key) is not str:
            return _discard(discarded, SlotName.CUSTOM, "a key is not text")
    return _UNCHANGED if same_value(after, before) else after


def _fixed(slot: SlotName) -> _Handler:
    """Make the handler of a slot that nobody may change: it only notes the attempt."""
    name = slot.value

    def note(
        original: Extensions,
        returned: object,
        rights: Rights,
        _plugin_name: str,
        discarded: list[DiscardedChange],
    ) -> object:
        own = getattr(original, name) if rights.may_read(slot) else None
        if not same_value(returned, own):
            _discard(discarded, slot, _NOBODY)
        return _UNCHANGED

    return note


def _discard(discarded: list[DiscardedChange], slot: SlotName, reason: str) -> object:
    discarded.append(DiscardedChange(slot.value, SLOT_POLICIES[slot].tier, reason))
    return _UNCHANGED


def _violation(plugin_name: str, slot: SlotName, detail: str) -> TierViolationError:
    return TierViolationError(plugin_name, slot, SLOT_POLICIES[slot].tier, detail)


def _parse_hop(value: object) -> DelegationHop | None:
    if not isinstance(value, DelegationHop):
        return None
    try:
        return DelegationHop.model_validate(isolate_data(model_dict(value)))
    except (ValidationError, NotIsolable):
        return None


def _parse_age(value: object) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    age = float.__float__(value) if isinstance(value, float) else float(int.__int__(value))
    return age if math.isfinite(age) and age >= 0 else None


_HeaderText = Annotated[
    str, StringConstraints(pattern=r"^[^\r\n\x00]*$", max_length=MAX_HEADER_CHARS)
]
_Headers = Annotated[dict[_HeaderText, _HeaderText], Field(max_length=MAX_HEADERS)]
_Labels = Annotated[
    frozenset[Annotated[str, StringConstraints(max_length=MAX_LABEL_CHARS)]],
    Field(max_length=MAX_LABELS),
]
# Compiled parsers: they read builtins below any override and give back exact builtins.
_parse_headers = TypeAdapter[dict[str, str]](_Headers).validator.validate_python
_parse_labels = TypeAdapter[frozenset[str]](_Labels).validator.validate_python
_new = object.__new__
_UNCHANGED: object = object()
_NO_SECURITY = SecurityExtension()
_Handler: TypeAlias = Callable[[Extensions, object, Rights, str, list[DiscardedChange]], object]
_HANDLERS: dict[str, _Handler] = {
    "request": _fixed(SlotName.REQUEST),
    "agent": _fixed(SlotName.AGENT),
    "http": _merge_http,
    "security": _merge_security,
    "delegation": _merge_delegation,
    "mcp": _fixed(SlotName.MCP),
    "completion": _fixed(SlotName.COMPLETION),
    "provenance": _fixed(SlotName.PROVENANCE),
    "llm": _fixed(SlotName.LLM),
    "framework": _fixed(SlotName.FRAMEWORK),
    "meta": _fixed(SlotName.META),
    "custom": _merge_custom,
}
