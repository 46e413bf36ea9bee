"""`ExtensionsView`: what one plugin sees of the extensions, copied slot by slot as it is read.

A view is an `Extensions` whose slots come into being when somebody looks at them, each as a fresh
read-only copy. Most plugins look at one or two slots; the rest costs nothing. The source that the
copies are made from is kept in a place without a name: no attribute, no `__dict__` entry, no
`repr`, dump or pickle leads to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from kaged.pipeline import slots
from kaged.pipeline.copies import DEEP_FIELDS, copy_custom, copy_slot, visible_security
from kaged.pipeline.isolation import model_dict, new_frozen, set_model_dict
from kaged.pipeline.lazy_slots import Slot
from kaged.pipeline.slots import Extensions
from kaged.pipeline.tiers import RESOLVED, Rights, resolve_rights

Origin: TypeAlias = "tuple[Extensions, Rights, dict[str, Any]]"
"""Where a view came from: the authoritative object, the rights it was cut down to, and the copies
that were made for it so far, by slot. A slot that still holds its copy has not been changed."""


class ExtensionsView(Extensions):
    """A filtered `Extensions`; `filter_extensions` makes them.

    `model_copy(update={...})` returns another view with the update on top, as cheap as the update.
    Calling the class builds a plain `Extensions`.
    """

    __slots__ = ("_origin",)

    def __new__(cls, **data: Any) -> Extensions:
        """Build a plain container, for plugins that write `type(extensions)(...)`."""
        return Extensions(**data)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass the type checker

        @property
        def __dict__(self) -> dict[str, Any]:
            return read_all(self)

        @__dict__.setter
        def __dict__(self, values: dict[str, Any]) -> None:
            set_model_dict(self, values)

        def __getattr__(self, name: str) -> Any:
            # A field that a subclass of Extensions added without a policy is hidden from everybody.
            kind = type(origin_of(self)[0])
            if kind is not Extensions:
                return None if name in kind.model_fields else super().__getattr__(name)
            if name.startswith("__"):
                return super().__getattr__(name)  # pydantic's own state
            raise AttributeError(f"'Extensions' object has no attribute {name!r}")

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            return iter(list(read_all(self).items()))

    def model_copy(self, *, update: Any = None, deep: bool = False) -> Extensions:
        """Return a view of the same source, with the slots of `update` in place of its own."""
        values = copy.deepcopy(read_all(self)) if deep else model_dict(self)
        values = {**values, **update} if update else values.copy()
        twin = _new(ExtensionsView)
        _set_origin(twin, origin_of(self))
        set_model_dict(twin, values)
        return twin

    def __copy__(self) -> Extensions:
        return self.model_copy()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Extensions:
        return self.model_copy(deep=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (read_all(self),))

    def __repr_name__(self) -> str:
        return "Extensions"


def filter_extensions(
    extensions: Extensions | None, capabilities: frozenset[str]
) -> Extensions | None:
    """Return a new container that holds only what these capabilities show; None for None.

    Hidden slots are None, hidden sub-fields empty. Everything in the result is a read-only copy:
    nothing done to it reaches `extensions` or another view. Names that are no capabilities give
    nothing (they are refused when the configuration is loaded).
    """
    if extensions is None:
        return None
    return view_of(extensions, RESOLVED.get(capabilities) or resolve_rights(capabilities))


def view_of(extensions: Extensions | None, rights: Rights) -> Extensions | None:
    """Return what `filter_extensions` does, for rights that are known already."""
    if extensions is None:
        return None
    view = _new(ExtensionsView)
    _set_origin(view, (extensions, rights, {}))  # nothing is copied yet
    return view


def read_all(view: ExtensionsView) -> dict[str, Any]:
    """Copy the slots nobody has looked at yet and return the view's own state, in slot order."""
    read = model_dict(view)
    if len(read) >= len(_READERS):
        return read
    if not read:  # mostly: nobody has looked at any, so they come in their order
        for read_slot in _READERS.values():
            read_slot(view)
        return read
    values = {name: read_slot(view) for name, read_slot in _READERS.items()}
    values |= read  # names that are no slots, from a `model_copy`
    set_model_dict(view, values)
    return values


ReadSlot: TypeAlias = "Callable[[ExtensionsView], Any]"
"""Reads a slot of a view: it is copied on first sight, and then lies there."""


def _shown_by(name: str, copy_for: Callable[[Any, Rights], Any]) -> ReadSlot:
    """Return what reads a slot of which `copy_for` makes what the rights show."""

    def read(view: ExtensionsView) -> Any:
        held = model_dict(view)
        if name in held:
            return held[name]
        source, rights, copies = origin_of(view)
        value = getattr(source, name)
        if value is not None:
            value = copy_for(value, rights)
        held[name] = copies[name] = value
        return value

    return read


def _writer(name: str) -> Callable[[ExtensionsView, Any], None]:
    """Return what writes a slot past the frozen model, as unpickling does: into the view alone."""

    def write(view: ExtensionsView, value: Any) -> None:
        model_dict(view)[name] = value

    return write


def _shown_whole(name: str, kind: type[Slot], right: str = "") -> ReadSlot:
    """Return what reads a slot that is shown whole, or not at all without this right.

    Plugins read several such slots in each call, so what `copy_slot` does is done here, two calls
    earlier.
    """
    deep = DEEP_FIELDS[kind]

    def read(view: ExtensionsView) -> Any:
        held = model_dict(view)
        if name in held:
            return held[name]
        source, rights, copies = origin_of(view)
        value = getattr(source, name)
        if right and not getattr(rights, right):
            value = None
        elif type(value) is kind:
            values = model_dict(value).copy()
            for part, read_only in deep:
                item = values[part]
                if item is not None:
                    values[part] = read_only(item)
            value = _new(kind)
            set_model_dict(value, values)
        elif value is not None:
            value = copy_slot(value)
        held[name] = copies[name] = value
        return value

    return read


_READERS: dict[str, ReadSlot] = {
    "request": _shown_whole("request", slots.RequestExtension),
    "agent": _shown_whole("agent", slots.AgentExtension, "agent"),
    "http": _shown_whole("http", slots.HttpExtension, "headers"),
    "security": _shown_by("security", visible_security),
    "delegation": _shown_whole("delegation", slots.DelegationExtension, "delegation"),
    "mcp": _shown_whole("mcp", slots.MCPExtension),
    "completion": _shown_whole("completion", slots.CompletionExtension),
    "provenance": _shown_whole("provenance", slots.ProvenanceExtension),
    "llm": _shown_whole("llm", slots.LLMExtension),
    "framework": _shown_whole("framework", slots.FrameworkExtension),
    "meta": _shown_whole("meta", slots.MetaExtension),
    "custom": _shown_by("custom", copy_custom),
}
"""How each slot is read by a holder of some rights; a slot that is not here stays hidden."""


def _restore(values: dict[str, Any]) -> Extensions:
    return new_frozen(Extensions, values)


_new = object.__new__
_place = vars(ExtensionsView)["_origin"]
origin_of: Callable[[Extensions], Origin] = _place.__get__
"""Tells where a view came from; raises AttributeError for what `filter_extensions` did not make."""
_set_origin: Callable[[Extensions, Origin], None] = _place.__set__
# From here on the place has no name; only this module holds the way to it.
type.__delattr__(ExtensionsView, "_origin")
# Set below the metaclass, which would take these for new fields.
for _name, _read in _READERS.items():
    type.__setattr__(ExtensionsView, _name, property(_read, _writer(_name)))
