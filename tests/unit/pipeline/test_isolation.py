from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel, SecretStr

from kaged.pipeline.isolation import (
    MAX_DEPTH,
    NotIsolable,
    ReadOnlyDict,
    ReadOnlyList,
    exact_text,
    freeze,
    isolate,
    isolate_data,
    isolate_payload,
    same_value,
)
from kaged.pipeline.payloads.base import PluginPayload, StructuredData
from unit.pipeline.material import full_extensions, plain_data


class Colour(Enum):
    RED = "red"


class Sly(str):
    """Claims to equal everything and remembers what it was compared with."""

    __slots__ = ("seen",)

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("sly")


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list[str])


class Model(BaseModel):
    names: list[str]
    _hidden: list[int] = PrivateAttr(default_factory=lambda: [1])


class Keeper:
    """Cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Keeper:
        raise RuntimeError("no")


class Itself:
    """Gives out itself as its copy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Itself:
        return self


@given(value=plain_data)
def test_plain_data_is_copied_to_equal_data(value: Any) -> None:
    for copied in (isolate(value), isolate_data(value), isolate_payload(value), freeze(value)):
        assert copied == value
        assert same_value(copied, value)


@given(value=plain_data, other=plain_data)
def test_same_value_agrees_with_equality_on_plain_data(value: Any, other: Any) -> None:
    # True and 1, 1 and 1.0 are equal in the language but not the same value here.
    if same_value(value, other):
        assert value == other
    assert same_value(copy.deepcopy(value), value)


def test_containers_are_new_all_the_way_down() -> None:
    inner: list[Any] = [1, {"k": {1, 2}}]
    value = {"a": inner, "t": (inner,), ("key", 1): frozenset({"x"})}
    twin = isolate(value)
    assert twin == value
    inner.append("later")
    assert twin["a"] == [1, {"k": {1, 2}}]
    assert twin["t"] == ([1, {"k": {1, 2}}],)
    assert type(twin["a"]) is list
    frozen = freeze(value)
    assert type(frozen) is ReadOnlyDict
    assert type(frozen["a"]) is ReadOnlyList
    assert type(isolate(frozen)) is dict
    assert type(isolate(frozen)["a"]) is list


def test_values_that_nobody_can_change_are_shared() -> None:
    for value in (
        None,
        5,
        "text",
        b"bytes",
        2.5,
        1j,
        Decimal(1),
        datetime(2026, 1, 1, tzinfo=UTC),
        Colour.RED,
        PurePosixPath("/x"),
        int,
    ):
        assert isolate_data(value) is value


def test_subclasses_of_builtins_come_back_as_the_builtin() -> None:
    class Number(int):
        pass

    class Ratio(float):
        pass

    class Raw(bytes):
        pass

    class Texts(list[str]):
        pass

    class Bag(set[str]):
        pass

    class Fixed(frozenset[str]):
        pass

    class Pair(NamedTuple):
        a: int
        b: int

    for value, plain in (
        (Sly("x"), str),
        (Number(4), int),
        (Ratio(1.5), float),
        (Raw(b"x"), bytes),
        (OrderedDict(a=1), dict),
        (Texts(["a"]), list),
        (Pair(1, 2), tuple),
        (Bag("a"), set),
        (Fixed("a"), frozenset),
    ):
        twin = isolate_data(value)
        assert type(twin) is plain
    assert isolate_data(Sly("x")) == "x"
    assert exact_text(Sly("x")) == "x"
    assert type(exact_text(Sly("x"))) is str
    assert exact_text(5) is None


def test_models_dataclasses_and_secrets_are_copied_part_by_part() -> None:
    class Named(PluginPayload):
        names: list[str]
        _note: list[str] = PrivateAttr(default_factory=lambda: ["n"])

    class Open(PluginPayload):
        model_config = ConfigDict(extra="allow")

    model = Model(names=["a"])
    twin = isolate(model)
    model.names.append("later")
    model._hidden.append(2)
    assert (twin.names, twin._hidden) == (["a"], [1])

    named = Named(names=["a"])
    named._note.append("later")
    copied = isolate(named)
    named._note.append("even later")
    assert (copied.names, copied._note) == (["a"], ["n", "later"])

    data = StructuredData.model_validate({"deep": {"list": [1]}})
    copied_data = isolate(data)
    data.deep["list"].append(2)  # pyright: ignore[reportAttributeAccessIssue] - an extra field
    assert copied_data.deep == {"list": [1]}
    assert isolate(Open.model_validate({"more": [1]})).more == [1]

    point = Point(1, ["a"])
    moved = isolate_data(point)
    point.tags.append("later")
    assert moved == Point(1, ["a"])

    secret = SecretStr("s")
    hidden = isolate(secret)
    object.__setattr__(secret, "_secret_value", "changed")
    assert hidden.get_secret_value() == "s"
    assert isolate(full_extensions()) == full_extensions()


def test_opaque_objects_are_refused_copied_or_shared_depending_on_whose_they_are() -> None:
    plain = type("Plain", (), {})()
    assert isolate(plain) is not plain
    with pytest.raises(NotIsolable, match="not plain data"):
        isolate_data(plain)
    for stubborn in (Keeper(),):
        with pytest.raises(NotIsolable, match="cannot be copied"):
            isolate({"k": stubborn})
        assert isolate_payload([stubborn])[0] is stubborn
    same = Itself()
    assert isolate_payload([same])[0] is same
    with pytest.raises(NotIsolable):
        isolate_data([same])


def test_depth_and_circles_are_limited() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 1):
        deep = {"k": deep}
    for value in (circle, deep):
        with pytest.raises(NotIsolable, match="nested deeper"):
            isolate(value)


def test_comparing_never_runs_foreign_code() -> None:
    seen: list[object] = []

    class Spy:
        def __eq__(self, other: object) -> bool:
            seen.append(other)
            return True

        def __hash__(self) -> int:
            return 1

    own = full_extensions()
    assert own.mcp is not None
    forged = own.mcp.model_copy(update={"tool": Spy()})
    assert not same_value(forged, own.mcp)
    assert not same_value({"a": Spy()}, {"a": own})
    assert not same_value([Spy()], [own])
    assert not same_value({Spy(): 1}, {"a": 1})
    assert not same_value(frozenset({Spy()}), frozenset({"a"}))
    assert not same_value(Sly("x"), "x")
    assert seen == []


def test_same_value_tells_kinds_apart() -> None:
    assert not same_value(1, True)
    assert not same_value([1], (1,))
    assert not same_value((1,), [1])
    assert not same_value([1], [1, 2])
    assert not same_value({"a": 1}, {"b": 1})
    assert not same_value({"a": 1}, [1])
    assert not same_value({"a": 1}, {"a": 2})
    assert not same_value(frozenset({"a"}), {"a"})
    assert same_value(frozenset({"a"}), frozenset({"a"}))
    assert same_value(Colour.RED, Colour.RED)
    assert same_value(freeze({"a": [1]}), {"a": [1]})
    assert not same_value(Model(names=[]), full_extensions())
    assert not same_value(Point(1), Point(1))


class Headers(RootModel[dict[str, str]]):
    """A model of another program that is one value."""


class Nested(BaseModel):
    headers: Headers


@pytest.mark.parametrize("copied", [isolate, isolate_payload, isolate_data])
def test_models_of_one_value_are_copied(copied: Callable[[Any], Any]) -> None:
    original = Nested(headers=Headers({"a": "b"}))
    twin = copied(original)
    twin.headers.root["c"] = "d"
    assert original.headers.root == {"a": "b"}
    assert twin.model_dump() == {"headers": {"a": "b", "c": "d"}}
    assert type(twin.headers) is Headers
    assert twin.headers == Headers({"a": "b", "c": "d"})


def test_a_weak_reference_in_a_payload_stays_one() -> None:
    class Service:
        def greet(self) -> str:
            return "hello"

    service = Service()
    twin = isolate_payload({"service": weakref.proxy(service)})
    assert twin["service"].greet() == "hello"
    del service
    gc.collect()
    with pytest.raises(ReferenceError):
        twin["service"].greet()
