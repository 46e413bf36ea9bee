"""`dataclass`: the decorator of the standard library, at a tenth of its price when a module loads.

`dataclasses.dataclass` writes source for up to eight methods of every class and compiles each:
about a millisecond for a frozen one. The daemon has some seven hundred of these classes, and making
them was a third of its start. Here the standard library still finds the fields, so `fields`,
`replace`, `asdict`, `field` and `KW_ONLY` work as ever. Only the methods are ours: comparing and
hashing read the fields with `attrgetter`, and `__init__` is compiled when the first object of its
class is made, after which it is as fast as the original.

What differs: `__dataclass_params__` says nothing of `frozen`, and nobody looks at run time whether
a class that is not frozen inherits from one that is. The type checker does; for it this is the
decorator of the standard library. `InitVar` is not supported, and nobody uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - for others to import from here

C = TypeVar("C")

_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")


if not TYPE_CHECKING:

    def dataclass(cls: type[C] | None = None, /, **options: bool) -> Any:
        """Make a class a dataclass; takes the options of `dataclasses.dataclass`."""
        return _make(cls, **options) if cls is not None else lambda cls: _make(cls, **options)


def _make(
    cls: type[C],
    *,
    init: bool = True,
    repr: bool = True,  # noqa: A002 - the option's name
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = False,
    **others: bool,
) -> type[C]:
    # Python itself writes `__hash__ = None` into a class with an `__eq__` of its own.
    own_hash = cls.__dict__.get("__hash__") is not None
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **others)(cls)
    own = made.__dict__
    compared = tuple(one.name for one in dataclasses.fields(made) if one.compare)
    if init and "__init__" not in own:
        _init_later(made, frozen=frozen)
    if repr and "__repr__" not in own:
        made.__repr__ = _repr
    if eq and "__eq__" not in own:
        made.__eq__ = _eq(_values_of(compared))
    if order:
        for name in _ORDER:
            setattr(made, name, _ordered(name, _values_of(compared)))
    if unsafe_hash or (eq and frozen and not own_hash):
        made.__hash__ = _hash(_values_of(_hashed(made)))
    elif eq and not own_hash:
        made.__hash__ = None
    if frozen:
        _freeze(made, slots=others.get("slots", False))
    return made


def _init_later(made: Any, *, frozen: bool) -> None:
    """Set an `__init__` on a class that replaces itself when it is called for the first time."""
    # What could not be compiled then is refused now.
    optional = False
    for one in dataclasses.fields(made):
        if one.init and not one.kw_only:
            required = one.default is MISSING and one.default_factory is MISSING
            if required and optional:
                raise TypeError(f"non-default argument {one.name!r} follows default argument")
            optional = not required

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - see above
        # Two threads may come here at once; both compile the same.
        made.__init__ = _compile_init(made, frozen=frozen)
        made.__init__(self, *args, **kwargs)

    made.__init__ = __init__


def _compile_init(made: Any, *, frozen: bool) -> Callable[..., None]:
    """Compile the `__init__` of a class from its fields."""
    known: dict[str, Any] = {"_absent": MISSING, "_set": object.__setattr__}
    positional, named, lines = ["self"], list[str](), list[str]()
    for one in dataclasses.fields(made):
        name = value = one.name
        parameter = name
        if one.default is not MISSING:
            known[f"_default_{name}"] = one.default
            parameter = f"{name}=_default_{name}"
        elif one.default_factory is not MISSING:
            known[f"_factory_{name}"] = one.default_factory
            parameter = f"{name}=_absent"
            value = f"_factory_{name}() if {name} is _absent else {name}"
        if one.init:
            (named if one.kw_only else positional).append(parameter)
        elif one.default_factory is not MISSING:
            value = f"_factory_{name}()"
        elif one.default is not MISSING:
            value = f"_default_{name}"
        else:
            continue  # `__post_init__` sets it
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    body = "\n ".join(lines or ["pass"])
    exec(f"def __init__({parameters}):\n {body}", known)  # noqa: S102 - names of fields, nothing else
    compiled = known["__init__"]
    compiled.__qualname__ = f"{made.__qualname__}.__init__"
    compiled.__module__ = made.__module__
    return compiled


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these attributes of an object, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)  # the only form that gives a tuple
    return lambda self: tuple(getattr(self, name) for name in names)


def _hashed(made: Any) -> tuple[str, ...]:
    fields = dataclasses.fields(made)
    return tuple(one.name for one in fields if (one.compare if one.hash is None else one.hash))


@recursive_repr()
def _repr(self: Any) -> str:
    fields = (one.name for one in dataclasses.fields(self) if one.repr)
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
    return f"{type(self).__qualname__}({shown})"


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:  # noqa: N807 - a method of the class that is made
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _ordered(name: str, values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def compare(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return getattr(values(self), name)(values(other))

    return compare


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807 - a method of the class that is made
        return hash(values(self))

    return __hash__


def _freeze(made: Any, *, slots: bool) -> None:
    """Make a class refuse changes to its objects; one that inherits may have more attributes."""
    names = frozenset(one.name for one in dataclasses.fields(made))

    def __setattr__(self: Any, name: str, value: object) -> None:  # noqa: N807 - as above
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807 - as above
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__ = __setattr__
    made.__delattr__ = __delattr__
    if slots:  # copies are made by setting attributes, which is refused
        made.__getstate__ = _get_state
        made.__setstate__ = _set_state


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
