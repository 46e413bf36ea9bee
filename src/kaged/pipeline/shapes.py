"""`PlainRecord`: light value classes that answer to the pydantic calls that plugin authors know."""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel

S = TypeVar("S", bound="PlainRecord")


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
