"""`frozen`: a frozen dataclass with slots that costs a tenth of the import time.

`dataclasses` compiles six methods for every class, a millisecond each time. Configuration has
about a hundred small classes of which a command uses a few, so they share one set of methods that
look at the fields instead. `dataclasses.fields` and `dataclasses.replace` work as usual.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, dataclass
from typing import Any, NoReturn, TypeVar, dataclass_transform

R = TypeVar("R")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[R]) -> type[R]:
    """Make a class a frozen dataclass with slots; arguments by position or by name."""
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__init__ = _init
    made.__repr__ = _repr
    made.__eq__ = _eq
    made.__hash__ = _hash
    made.__setattr__ = _refuse
    made.__delattr__ = _refuse
    return made


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    fields = dataclasses.fields(self)
    given = dict(zip((item.name for item in fields), args, strict=False))
    doubled = given.keys() & kwargs.keys()
    unknown = kwargs.keys() - {item.name for item in fields}
    if len(args) > len(fields) or doubled or unknown:
        name = type(self).__name__
        raise TypeError(
            f"{name} got unexpected arguments: {sorted(doubled | unknown) or 'too many'}"
        )
    given.update(kwargs)
    for item in fields:
        if item.name in given:
            value = given[item.name]
        elif item.default is not MISSING:
            value = item.default
        elif item.default_factory is not MISSING:
            value = item.default_factory()
        else:
            raise TypeError(f"{type(self).__name__} needs the argument {item.name!r}")
        object.__setattr__(self, item.name, value)


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, item.name) for item in dataclasses.fields(self) if item.compare)


def _repr(self: Any) -> str:
    shown = (
        f"{item.name}={getattr(self, item.name)!r}"
        for item in dataclasses.fields(self)
        if item.repr
    )
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, *_: Any) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")
