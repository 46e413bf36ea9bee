"""`Slot` and `LazySlot`: the base of all slots, and of those whose deep parts are copied on sight.

The schema of a tool or the objects of a security slot may be large, and most plugins that look at
the slot want a name or a label of it. As with the slots of a view, what the copies are made from is
kept in a place without a name: no attribute, no `__dict__` entry, no `repr`, dump or pickle leads
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pydantic import BaseModel

from kaged.pipeline.shapes import Frozen, absent_state, model_dict, set_model_dict

Makers: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""Makes, by field, the copy that a plugin gets of it."""

FIELD_COUNTS: dict[type[BaseModel], int] = {}
"""Of the lazy slots, by class. A slot that holds a value for each field is whole."""


class Slot(Frozen):
    """One slot of `Extensions`, or a value inside one."""


class LazySlot(Slot):
    """A slot of which `lazy_copy` makes copies without their deep parts."""

    __slots__ = ("_missing",)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass the type checker

        @property
        def __dict__(self) -> dict[str, Any]:
            return whole_state(self)

        __dict__ = __dict__.setter(set_model_dict)

        def __getattr__(self, name: str) -> Any:
            try:
                source, makers = _missing_of(self)
                make = makers[name]
            except (AttributeError, KeyError):
                return absent_state(self, name)
            value = make(getattr(source, name))
            model_dict(self)[name] = value
            return value

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the values of `update` in place of its own, as lazy as this one."""
        if deep:
            return super().model_copy(update=update, deep=True)
        try:
            missing = _missing_of(self)
        except AttributeError:
            return super().model_copy(update=update)
        twin = _new(type(self))
        set_model_dict(twin, {**model_dict(self), **(update or {})})
        _set_missing(twin, missing)
        return twin

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        FIELD_COUNTS[cls] = len(cls.model_fields)


def lazy_copy(slot: LazySlot, values: dict[str, Any], makers: Makers) -> Any:
    """Make a copy of a slot with these values; `makers` make the rest. Takes `values` over."""
    twin = _new(type(slot))
    set_model_dict(twin, values)
    _set_missing(twin, (slot, makers))
    return twin


def whole_state(model: BaseModel) -> dict[str, Any]:
    """Return the values of a model, copying those first that nobody has looked at yet."""
    read = model_dict(model)
    if len(read) >= FIELD_COUNTS.get(type(model), 0):
        return read
    try:
        source, makers = _missing_of(model)
    except AttributeError:
        return read  # not a copy of ours
    values = {
        name: makers[name](value) if name in makers and name not in read else read.get(name)
        for name, value in whole_state(source).items()
    }
    values |= read
    set_model_dict(model, values)
    return values


_new = object.__new__
_place = vars(LazySlot)["_missing"]
_missing_of: Callable[[BaseModel], tuple[LazySlot, Makers]] = _place.__get__
_set_missing: Callable[[BaseModel, tuple[LazySlot, Makers]], None] = _place.__set__
# The place has no name from here on, as that of a view.
type.__delattr__(LazySlot, "_missing")
