"""Private and read-only copies of values: what keeps one party's objects out of another's hands.

`freeze` returns a deep copy whose containers refuse edits (the slots of a view); `isolate` makes a
deep copy made of exact `dict` and `list` (payloads and `custom`, which native plugins read through
the C interface). Neither gives out an object that the other side could change later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import NoneType
from typing import Any, NoReturn, TypeVar, cast
from uuid import UUID
from weakref import ProxyTypes

from pydantic import BaseModel, RootModel, SecretBytes, SecretStr

from kaged.base.errors import KagedError
from kaged.pipeline.lazy_slots import whole_state
from kaged.pipeline.shapes import (
    LIGHT_MODELS,
    Frozen,
    model_dict,
    set_fields_set,
    set_model_dict,
)

MAX_DEPTH = 64
"""Containers nested deeper than this, or in a circle, are refused."""

ATOMS: frozenset[type] = frozenset(
    {
        NoneType,
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        datetime,
        date,
        time,
        timedelta,
        timezone,
        Decimal,
        Fraction,
        UUID,
    }
)
"""Exact types whose objects nobody can change, so that sharing them is safe."""

M = TypeVar("M", bound=BaseModel)
F = TypeVar("F", bound=Frozen)

# The other places where a pydantic model keeps its state, as in `shapes`.
_places = cast("dict[str, Any]", BaseModel.__dict__)
_new = object.__new__
_get_extra: Callable[[BaseModel], Any] = _places["__pydantic_extra__"].__get__
_set_extra: Callable[[BaseModel, Any], None] = _places["__pydantic_extra__"].__set__
_get_private: Callable[[BaseModel], Any] = _places["__pydantic_private__"].__get__
_set_private: Callable[[BaseModel, Any], None] = _places["__pydantic_private__"].__set__


class NotIsolable(KagedError):
    """A value cannot be copied into private hands: too deep, circular, or of an opaque type."""

    code = "pipeline_value_not_isolable"


class ReadOnlyDict(dict[Any, Any]):
    """A real `dict` that refuses edits with a sentence that tells what to do instead.

    Reading goes at full speed, also from native code; `{**it}`, `it | other`, `dict(it)` and
    `it.copy()` give ordinary dicts to work on.
    """

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("this mapping is read-only; return a changed copy in modified_extensions")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = _refuse
    setdefault = update = _refuse  # pyright: ignore[reportAssignmentType] - narrower on purpose

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


class ReadOnlyList(list[Any]):
    """A real `list` that refuses edits; `list(it)`, `it + other` and `it.copy()` are ordinary."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("this list is read-only; return a changed copy in modified_extensions")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = _refuse
    sort = _refuse  # pyright: ignore[reportAssignmentType] - narrower on purpose

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))


def new_frozen(model_class: type[F], values: dict[str, Any]) -> F:
    """Make one of our own frozen models around `values` without validation; takes the dict over."""
    model = _new(model_class)
    set_model_dict(model, values)
    return model


def shell_of(model: M, values: dict[str, Any]) -> M:
    """Make a model of the class of `model`, any class, around `values`; takes the dict over.

    Extra and private values of the original are left out.
    """
    twin = _new(type(model))
    set_model_dict(twin, values)
    set_fields_set(twin, model.model_fields_set.copy())
    _set_extra(twin, None)
    _set_private(twin, None)
    return twin


def isolate(value: Any) -> Any:
    """Copy the host's own `value` deeply into exact plain containers that nobody else holds.

    Raises:
        NotIsolable: nested deeper than `MAX_DEPTH`, circular, or of a type that cannot be copied.
    """
    return value if type(value) in ATOMS else _plain.copy(value, 0)


def isolate_data(value: Any) -> Any:
    """Copy foreign `value` as `isolate` does, but accept plain data, models and dataclasses only.

    An object of any other type brings its own idea of what a copy is, and could keep a hand on
    it; such a value is refused.

    Raises:
        NotIsolable: as `isolate`, and for every other type.
    """
    return value if type(value) in ATOMS else _data.copy(value, 0)


def isolate_payload(value: Any) -> Any:
    """Copy a hook payload for one plugin: as `isolate`, but what cannot be copied is shared.

    A tool may return a live object; refusing it would break the call, and hiding it would blind
    the plugin.
    """
    return value if type(value) in ATOMS else _payload.copy(value, 0)


def isolate_flat(payload: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Copy a payload as `isolate_payload` does, and say how the next copy is made faster.

    When the payload holds atoms and dicts of atoms only, as most do, the names of the fields with
    these dicts come along: to copy them and the state around them is enough.
    """
    kind = type(payload)
    if kind not in LIGHT_MODELS:
        return isolate_payload(payload), None
    values = model_dict(payload).copy()
    dicts: list[str] = []
    for name, value in values.items():
        if type(value) in ATOMS:
            continue
        if type(value) is not dict:
            return _payload.copy(payload, 0), None
        for key, item in value.items():
            if type(item) not in ATOMS or type(key) not in ATOMS:
                return _payload.copy(payload, 0), None
        values[name] = value.copy()
        dicts.append(name)
    twin = _new(kind)
    set_model_dict(twin, values)
    return twin, tuple(dicts)


def freeze(value: Any) -> Any:
    """Copy the host's own `value` deeply into containers that refuse edits.

    Raises:
        NotIsolable: as `isolate`.
    """
    kind = type(value)
    if kind is dict:  # mostly a flat one
        for key, item in value.items():
            if type(item) not in ATOMS or type(key) not in ATOMS:
                break
        else:
            return ReadOnlyDict(value)
    return value if kind in ATOMS else _read_only.copy(value, 0)


def same_value(foreign: Any, own: Any) -> bool:
    """Compare a foreign value with one of the host's, running no code of the foreign value.

    A foreign `__eq__` would be handed the host's object; here only builtin types are compared
    with `==`, and everything else differs.
    """
    kind = type(foreign)
    if kind in ATOMS:
        return kind is type(own) and foreign == own
    if kind in _DICTS:
        if type(own) not in _DICTS or len(foreign) != len(own):
            return False
        for name, item in foreign.items():
            if type(name) not in ATOMS or name not in own or not same_value(item, own[name]):
                return False
        return True
    if kind in _LISTS or kind is tuple:
        alike = type(own) in _LISTS if kind in _LISTS else type(own) is tuple
        return alike and len(foreign) == len(own) and all(map(same_value, foreign, own))
    if kind is frozenset:
        return type(own) is frozenset and _all_atoms(foreign) and foreign == own
    if issubclass(kind, BaseModel):
        return kind is type(own) and same_value(whole_state(foreign), whole_state(own))
    return issubclass(kind, Enum) and foreign is own


def exact_text(value: Any) -> str | None:
    """Return `value` as an exact `str`, or None when it is no text at all.

    A subclass of `str` is read below its overrides, so that it cannot compare equal to anything
    it likes.
    """
    if type(value) is str:
        return value
    return str.__str__(value) if isinstance(value, str) else None


class _Copier:
    """One style of deep copy: which containers come out, and what becomes of opaque objects."""

    __slots__ = ("_dict_as", "_list_as", "_opaque")

    def __init__(
        self,
        dict_as: type[dict[Any, Any]],
        list_as: type[list[Any]],
        opaque: Callable[[Any], Any],
    ) -> None:
        self._dict_as = dict_as
        self._list_as = list_as
        self._opaque = opaque

    def copy(self, value: Any, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            raise NotIsolable(
                f"a value is nested deeper than {MAX_DEPTH} containers, or contains itself",
                fix="flatten the value",
            )
        kind = type(value)
        depth += 1
        if kind is dict or kind is ReadOnlyDict:
            plain = self.copy_values(value, depth)
            return plain if self._dict_as is dict else self._dict_as(plain)
        if kind in LIGHT_MODELS:
            twin = _new(kind)
            set_model_dict(twin, self.copy_values(whole_state(value), depth))
            return twin
        if kind in ATOMS:
            return value
        if kind is list or kind is ReadOnlyList:
            return self._list_as(self._items(value, depth))
        if kind in _OTHER_CONTAINERS:
            return kind(self._items(value, depth))
        return self._other(value, kind, depth)

    def copy_values(self, values: dict[Any, Any], depth: int) -> dict[Any, Any]:
        plain = values.copy()
        for key, item in plain.items():
            if type(item) not in ATOMS:
                plain[key] = self.copy(item, depth)
            if type(key) not in ATOMS:
                return {self.copy(k, depth): self.copy(v, depth) for k, v in values.items()}
        return plain

    def _items(self, values: Any, depth: int) -> list[Any]:
        return [item if type(item) in ATOMS else self.copy(item, depth) for item in values]

    def _other(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, BaseModel):
            return self._model(value, depth)
        if issubclass(kind, (Enum, PurePath, type)):
            return value  # immutable by design
        if issubclass(kind, (SecretStr, SecretBytes)):
            return kind(value.get_secret_value())
        # Subclasses of builtins come back as the builtin: overridden methods and hidden attributes
        # stay behind. The unbound methods of the builtin read below any override.
        for base, read in _BELOW_OVERRIDES:
            if issubclass(kind, base):
                return self.copy(read(value), depth)
        return self._dataclass(value, kind, depth) if is_dataclass(kind) else self._opaque(value)

    def _dataclass(self, value: Any, kind: type, depth: int) -> Any:
        twin = _new(kind)
        for field in fields(kind):
            item = object.__getattribute__(value, field.name)
            object.__setattr__(twin, field.name, self.copy(item, depth))
        return twin

    def _model(self, model: BaseModel, depth: int) -> BaseModel:
        twin = shell_of(model, self.copy_values(model_dict(model), depth))
        if isinstance(model, RootModel):
            return twin  # which has neither extra values nor a place for them
        extra = _get_extra(model)
        if extra is not None:  # pydantic writes into this dict itself, so it stays an exact one
            _set_extra(twin, {name: self.copy(item, depth) for name, item in extra.items()})
        private = _get_private(model)
        if private is not None:
            _set_private(twin, {name: self.copy(item, depth) for name, item in private.items()})
        return twin


def _copy_opaque(value: Any) -> Any:
    try:
        twin = copy.deepcopy(value)
    except Exception as error:
        # Boundary: copying runs foreign code; any failure of it means "cannot be isolated".
        raise NotIsolable(
            f"an object of type {type(value).__name__} cannot be copied ({type(error).__name__})",
            fix="put plain data there: text, numbers, lists and mappings",
        ) from error
    return twin


def _refuse_opaque(value: Any) -> NoReturn:
    raise NotIsolable(
        f"an object of type {type(value).__name__} is not plain data",
        fix="put text, numbers, lists, mappings or models there",
    )


def _share_opaque(value: Any) -> Any:
    if type(value) in ProxyTypes:
        return value  # a copy of it would be one of what it stands for, and keep that alive
    try:
        return _copy_opaque(value)
    except NotIsolable:
        return value


def _all_atoms(values: Any) -> bool:
    return all(type(value) in ATOMS for value in values)


_OTHER_CONTAINERS: frozenset[type] = frozenset({tuple, frozenset, set})
_DICTS: frozenset[type] = frozenset({dict, ReadOnlyDict})
_LISTS: frozenset[type] = frozenset({list, ReadOnlyList})

_BELOW_OVERRIDES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (dict, lambda value: dict(dict.items(value))),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
)

_plain = _Copier(dict, list, _copy_opaque)
_data = _Copier(dict, list, _refuse_opaque)
_payload = _Copier(dict, list, _share_opaque)
_read_only = _Copier(ReadOnlyDict, ReadOnlyList, _copy_opaque)
