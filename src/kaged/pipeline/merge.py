"""After a plugin ran: accept back only the changes that it was allowed to make.

Everything a plugin returns is read once, below any override, and rebuilt from exact values before
it is compared or kept. So nothing of the plugin's own making, neither an object it still holds nor
a class with odd ideas of equality, gets into the authoritative extensions or a hand on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from kaged.base.errors import KagedError
from kaged.pipeline.copies import subject_as_shown
from kaged.pipeline.delegation import merge_delegation
from kaged.pipeline.discards import UNCHANGED, DiscardedChange, TookAway, discard
from kaged.pipeline.isolation import (
    ATOMS,
    NotIsolable,
    isolate_data,
    model_dict,
    new_frozen,
    same_value,
    set_model_dict,
)
from kaged.pipeline.lazy_slots import whole_state
from kaged.pipeline.slots import (
    Extensions,
    HttpExtension,
    SecurityExtension,
)
from kaged.pipeline.tiers import (
    RESOLVED,
    SLOT_POLICIES,
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

_NOBODY = "it cannot be changed"


def merge_extensions(
    original: Extensions | None,
    plugin_output: object,
    capabilities: frozenset[str],
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
    rights = RESOLVED.get(capabilities) or resolve_rights(capabilities)
    discarded = [] if discarded is None else discarded
    return merge_by_rights(original, plugin_output, rights, plugin_name, discarded)


def merge_by_rights(
    original: Extensions,
    plugin_output: object,
    rights: Rights,
    plugin_name: str,
    discarded: list[DiscardedChange],
) -> Extensions:
    """Return what `merge_extensions` does, for rights that are known already."""
    # Slots of the plugin's own view that nobody looked at or replaced cannot have changed, nor one
    # that still holds the copy which the view made: it was read. A view of something else (of an
    # older call, say) promises no such thing.
    if type(plugin_output) is ExtensionsView:
        source, _, copies = origin_of(plugin_output)
        touched = model_dict(plugin_output)
        if source is not original:
            touched, copies = read_all(plugin_output), _NO_COPIES
    else:
        touched, copies = _state_of(plugin_output, plugin_name), _NO_COPIES
    values: dict[str, Any] | None = None
    try:
        for name, returned in touched.items():
            if name == "custom":  # open to everybody, and the plugin's to edit in place
                value = _merge_custom(original.custom, returned, discarded)
            elif returned is None or returned is (shown := copies.get(name)):
                continue
            else:
                handle = _HANDLERS.get(name, _leave_out)
                value = handle(original, returned, shown, rights, discarded)
            if value is not UNCHANGED:
                values = model_dict(original).copy() if values is None else values
                values[name] = value
    except TookAway as error:
        raise TierViolationError(
            plugin_name, error.slot, SLOT_POLICIES[error.slot].tier, error.detail
        ) from None
    if values is None:
        return original
    if type(original) is not Extensions:
        return _with_values(original, values)
    merged = _new(Extensions)
    set_model_dict(merged, values)
    return merged


def _state_of(output: object, plugin_name: str) -> dict[str, Any]:
    """Return all slots of something that is no view."""
    if isinstance(output, Extensions):
        return model_dict(output)
    raise KagedError(
        f"plugin {plugin_name!r} returned {type(output).__name__} as modified_extensions",
        code="pipeline_foreign_extensions",
        fix="return Extensions, made with model_copy from what the hook was given",
        plugin=plugin_name,
    )


def _with_values(original: Extensions, values: dict[str, Any]) -> Extensions:
    """Change the host's own subclass, or a view that somebody hands in as the original."""
    own = model_dict(original)
    return original.model_copy(
        update={name: value for name, value in values.items() if own.get(name, own) is not value}
    )


def _leave_out(
    _original: Extensions,
    _returned: object,
    _shown: object,
    _rights: Rights,
    _discarded: list[DiscardedChange],
) -> object:
    return UNCHANGED  # a name that is no slot


def _merge_http(
    original: Extensions,
    returned: object,
    _shown: object,
    rights: Rights,
    discarded: list[DiscardedChange],
) -> object:
    if not isinstance(returned, HttpExtension):
        return discard(discarded, SlotName.HTTP, "not an HttpExtension")
    http = original.http
    given = model_dict(returned).get("headers")
    try:
        headers = _plain_headers(given, _NO_COPIES if http is None else http.headers)
        if headers is None:
            headers = _parse_headers(given)
    except ValidationError:
        return discard(discarded, SlotName.HTTP, "headers are texts without CR, LF and NUL")
    if http is not None and headers == http.headers:
        return UNCHANGED
    if not rights.write_headers:
        return discard(discarded, SlotName.HTTP, "write_headers is not granted")
    return new_frozen(HttpExtension, {"headers": headers})


def _plain_headers(given: object, own: dict[str, str]) -> dict[str, str] | None:
    """Return a copy of headers that are clearly fine; None if `_parse_headers` must say.

    Mostly they are the host's own and one or two more, so only these are looked at.
    """
    if type(given) is not dict or len(given) > MAX_HEADERS:
        return None
    headers = given.copy()
    for name, value in headers.items():
        if type(name) is not str:
            return None
        if value is own.get(name, UNCHANGED):
            continue
        if type(value) is not str:
            return None
        text = name + value
        if len(text) > MAX_HEADER_CHARS or not text.isprintable():
            return None
    return headers


def _merge_security(
    original: Extensions,
    returned: object,
    shown: object,
    rights: Rights,
    discarded: list[DiscardedChange],
) -> object:
    if not isinstance(returned, SecurityExtension):
        return discard(discarded, SlotName.SECURITY_LABELS, "not a SecurityExtension")
    security = original.security or _NO_SECURITY
    state = model_dict(returned)
    seen = model_dict(shown) if isinstance(shown, SecurityExtension) else _NO_COPIES
    for name, part in state.items():  # without the parts that nobody has looked at
        if name != "labels" and part is not seen.get(name, UNCHANGED):
            slot = _FIXED_SECURITY.get(name)
            if slot is not None and not _same_part(name, part, security, rights):
                discard(discarded, slot, _NOBODY)
    if state.get("labels") is security.labels:
        return UNCHANGED
    try:
        labels = _parse_labels(state.get("labels"))
    except ValidationError:
        return discard(discarded, SlotName.SECURITY_LABELS, "labels are short texts")
    before = security.labels
    if not rights.append_labels:
        if labels != (before if rights.labels else frozenset()):
            discard(discarded, SlotName.SECURITY_LABELS, "append_labels is not granted")
        return UNCHANGED
    if not labels >= before:
        removed = len(before - labels)
        raise TookAway(SlotName.SECURITY_LABELS, f"{removed} label(s) were removed")
    if labels == before:
        return UNCHANGED
    return new_frozen(SecurityExtension, whole_state(security) | {"labels": labels})


def _same_part(name: str, part: object, security: SecurityExtension, rights: Rights) -> bool:
    """Return whether a part of security that nobody may change is as the plugin was shown it."""
    if name == "subject":
        return subject_as_shown(part, security.subject, rights)
    return same_value(part, getattr(security, name))


def _merge_custom(
    before: dict[str, Any] | None, returned: object, discarded: list[DiscardedChange]
) -> object:
    if returned is None:
        return UNCHANGED if before is None else None
    if type(returned) is not dict:
        return _merge_odd_custom(before, returned, discarded)
    # Mostly a small dict of atoms: copied first, then looked at once. Anything else starts anew.
    after = returned.copy()
    for name, item in after.items():
        if type(name) is not str or type(item) not in ATOMS:
            return _merge_odd_custom(before, returned, discarded)
    # Equal is not yet the same: 1 and True are equal.
    return UNCHANGED if after == before and same_value(after, before) else after


def _merge_odd_custom(
    before: dict[str, Any] | None, returned: object, discarded: list[DiscardedChange]
) -> object:
    """Isolate and compare a `custom` that holds more than atoms, or is no plain dict."""
    try:
        after = isolate_data(returned)
    except NotIsolable as error:
        return discard(discarded, SlotName.CUSTOM, error.message)
    if type(after) is not dict:
        return discard(discarded, SlotName.CUSTOM, "not a dict")
    for key in after:
        if type(key) is not str:
            return discard(discarded, SlotName.CUSTOM, "a key is not text")
    return UNCHANGED if same_value(after, before) else after


def _fixed(slot: SlotName) -> _Handler:
    """Make the handler of a slot that nobody may change: it only notes the attempt."""
    name = slot.value

    def note(
        original: Extensions,
        returned: object,
        _shown: object,
        rights: Rights,
        discarded: list[DiscardedChange],
    ) -> object:
        own = getattr(original, name) if rights.may_read(slot) else None
        return UNCHANGED if same_value(returned, own) else discard(discarded, slot, _NOBODY)

    return note


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
_NO_SECURITY = SecurityExtension()
_NO_COPIES: dict[str, Any] = {}
_new = object.__new__
_FIXED_SECURITY = {
    "classification": SlotName.SECURITY_CLASSIFICATION,
    "objects": SlotName.SECURITY_OBJECTS,
    "data": SlotName.SECURITY_DATA,
    "subject": SlotName.SECURITY_SUBJECT,
}
_Handler: TypeAlias = Callable[[Extensions, object, object, Rights, list[DiscardedChange]], object]
"""Takes the extensions, what came back for the slot, the copy of it that the plugin was given, its
rights and the list of discarded changes; returns the new value or `UNCHANGED`."""
_HANDLERS: dict[str, _Handler] = {  # of all slots but `custom`
    "request": _fixed(SlotName.REQUEST),
    "agent": _fixed(SlotName.AGENT),
    "http": _merge_http,
    "security": _merge_security,
    "delegation": merge_delegation,
    "mcp": _fixed(SlotName.MCP),
    "completion": _fixed(SlotName.COMPLETION),
    "provenance": _fixed(SlotName.PROVENANCE),
    "llm": _fixed(SlotName.LLM),
    "framework": _fixed(SlotName.FRAMEWORK),
    "meta": _fixed(SlotName.META),
}
