"""`PlainRecord` and `Frozen`: the light value classes of the pipeline, mutable and frozen."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict

S = TypeVar("S", bound="PlainRecord")

# Two of the places where a pydantic model keeps its state, reached below any override, so that a
# subclass with clever properties neither sees nor steers what we read and write.
_places = cast("dict[str, Any]", BaseModel.__dict__)
model_dict: Callable[[BaseModel], dict[str, Any]] = _places["__dict__"].__get__
set_model_dict: Callable[[BaseModel, dict[str, Any]], None] = _places["__dict__"].__set__
_get_fields_set: Callable[[BaseModel], set[str]] = _places["__pydantic_fields_set__"].__get__
set_fields_set: Callable[[BaseModel, set[str]], None] = _places["__pydantic_fields_set__"].__set__


class PlainRecord:
    """A class of named values without validation: made thousands of times per second.

    Subclasses list their public fields in `shape`. Equality is by class and values.
    """

    __slots__ = ()
    shape: ClassVar[tuple[str, ...]] = ()

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the values of `update` in place of its own."""
        twin = copy.deepcopy(self) if deep else copy.copy(self)
        for name, value in (update or {}).items():
            object.__setattr__(twin, name, value)
        return twin

    @classmethod
    def model_construct(cls, _fields_set: object = None, **values: Any) -> Self:
        """Make one of values as they are; nothing here validates values."""
        return cls(**values)

    @classmethod
    def model_validate(cls, value: Any, **_options: Any) -> Self:
        """Make one of plain data, or return what is one already; unknown names are ignored.

        Raises:
            ValueError: it is neither, or something required is missing.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"{cls.__name__} needs an object, not {type(value).__name__}")  # noqa: TRY004 - what pydantic raises
        taken = set(inspect.signature(cls.__init__).parameters)
        try:
            return cls(**cls._parsed({k: v for k, v in value.items() if k in taken}))
        except TypeError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with what is nested in them parsed, too."""
        return values

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        """Return the values as plain data."""
        return {name: plain(getattr(self, name)) for name in self.shape}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.shape)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - mutable values have no hash

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shape)
        return f"{type(self).__name__}({inner})"


def plain(value: Any) -> Any:
    """Turn models and shapes inside `value` into dicts, lists and atoms."""
    if isinstance(value, PlainRecord):
        return value.model_dump()
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    return value


LIGHT_MODELS: set[type[BaseModel]] = set()
"""Our models whose field values are all there is, without extra or private ones."""


class Frozen(BaseModel):
    """A frozen value object: equal by value, changed only by `model_copy(update={...})`.

    The pipeline copies such objects by the thousand. A light copy carries its values alone; the
    rest of a pydantic model's state (set fields, extra and private values) is worked out here when
    somebody asks.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the values of `update` in place of its own; they are not validated.

        Plugins make every change with this. Pydantic's own would work the state out that a light
        copy does not carry, only to copy it: 27 µs for the security slot instead of 1.4.
        """
        kind = type(self)
        if deep or kind not in LIGHT_MODELS:
            return super().model_copy(update=update, deep=deep)
        values = model_dict(self).copy()
        if update:
            values.update(update)
        twin = object.__new__(kind)
        set_model_dict(twin, values)
        try:
            fields_set = _get_fields_set(self)
        except AttributeError:
            return twin  # a light copy of a light copy
        set_fields_set(twin, fields_set.union(update or ()))
        return twin

    @classmethod
    def __pydantic_init_subclass__(cls, **_kwargs: Any) -> None:
        if not cls.__private_attributes__ and cls.model_config.get("extra") != "allow":
            LIGHT_MODELS.add(cls)


def absent_state(model: BaseModel, name: str) -> Any:
    """Return the state that a light copy does not carry; called for names that are not there."""
    if name in {"__pydantic_extra__", "__pydantic_private__"}:
        return None
    if name == "__pydantic_fields_set__":
        return {
            field
            for field, info in type(model).model_fields.items()
            if model.__dict__.get(field)
            != info.get_default(call_default_factory=True, validated_data={})
        }
    return _pydantic_getattr(model, name)  # private values of a subclass are pydantic's business


# Past the type checker, for which a `__getattr__` would make every misspelt attribute right.
_pydantic_getattr = vars(BaseModel)["__getattr__"]
type.__setattr__(Frozen, "__getattr__", absent_state)
