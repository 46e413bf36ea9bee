"""`kaged.base.lazy_dataclass` beside the decorator of the standard library: nobody can tell."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kaged
from kaged.base.lazy_dataclass import dataclass

Decorator = Callable[..., Any]
BOTH = pytest.mark.parametrize(
    "decorator", [dataclass, dataclasses.dataclass], ids=["ours", "the standard library's"]
)
"""What is asserted of ours holds for the original, or the assertion would be wrong."""


@dataclass(frozen=True, slots=True)
class Point:
    """At module level, where pickle finds it."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = field(default_factory=lambda: ("a",))


@dataclass(frozen=True, slots=True)
class Point3(Point):
    z: int = 9


def rich(decorator: Decorator, **options: bool) -> Any:
    """Return a class with a field of each kind."""

    @decorator(**options)
    class Rich:
        """Each kind of field."""

        limit: ClassVar[int] = 7
        name: str
        number: int = 3
        items: list[int] = field(default_factory=list)
        hidden: str = field(default="h", repr=False, compare=False)
        made: str = field(init=False)
        kept: list[int] = field(init=False, default_factory=list, compare=False)
        _: KW_ONLY
        flag: bool = False
        needed: str

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", f"{self.name}-{self.number}")

    return Rich


@BOTH
@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_every_kind_of_field_is_set(decorator: Decorator, frozen: bool, slots: bool) -> None:
    cls = rich(decorator, frozen=frozen, slots=slots)
    first, second = cls("a", needed="n"), cls("b", 4, [1], "x", flag=True, needed="m")
    assert (first.name, first.number, first.items, first.hidden) == ("a", 3, [], "h")
    assert (first.made, first.kept, first.flag, first.needed) == ("a-3", [], False, "n")
    assert (second.number, second.items, second.hidden, second.flag) == (4, [1], "x", True)
    assert second.made == "b-4"
    assert cls("c", needed="n").items is not cls("d", needed="n").items
    assert [one.name for one in dataclasses.fields(cls)] == [
        "name", "number", "items", "hidden", "made", "kept", "flag", "needed",
    ]  # fmt: skip
    assert cls.__match_args__ == ("name", "number", "items", "hidden")
    assert repr(first).endswith(
        "Rich(name='a', number=3, items=[], made='a-3', kept=[], flag=False, needed='n')"
    )


@BOTH
def test_what_is_hidden_from_comparing_makes_no_difference(decorator: Decorator) -> None:
    cls = rich(decorator, slots=True)
    assert cls("a", needed="n") == cls("a", hidden="other", needed="n")
    assert cls("a", needed="n") != cls("a", 4, needed="n")
    assert cls("a", needed="n") != ("a", 3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(cls("a", needed="n"))


@BOTH
def test_a_wrong_argument_is_named_by_the_first_and_the_second_call(decorator: Decorator) -> None:
    for _ in range(2):
        cls = rich(decorator, frozen=True, slots=True)
        with pytest.raises(TypeError, match=r"Rich.__init__\(\) missing 1 required .* 'name'"):
            cls(needed="n")
        with pytest.raises(TypeError, match="unexpected keyword argument 'made'"):
            cls("a", needed="n", made="x")
        with pytest.raises(TypeError, match="multiple values for argument 'name'"):
            cls("a", name="b", needed="n")
        with pytest.raises(TypeError, match=r"positional arguments? but"):
            cls("a", 1, [], "h", "too many", needed="n")


@BOTH
@pytest.mark.parametrize("slots", [True, False])
def test_a_frozen_object_cannot_be_changed(decorator: Decorator, slots: bool) -> None:
    made = rich(decorator, frozen=True, slots=slots)("a", needed="n")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        made.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del made.name
    with pytest.raises((FrozenInstanceError, TypeError)):
        made.other = "b"
    assert made.name == "a"


@BOTH
def test_a_plain_heir_of_a_frozen_class_keeps_attributes_of_its_own(decorator: Decorator) -> None:
    class Heir(rich(decorator, frozen=True)):  # what a caller may do with a class of ours
        pass

    made = Heir("a", needed="n")
    made.extra = 1
    assert made.extra == 1
    with pytest.raises(FrozenInstanceError):
        made.name = "b"


@BOTH
def test_the_heir_made_first_leaves_the_base_as_it_is(decorator: Decorator) -> None:
    @decorator(frozen=True, slots=True)
    class Base:
        a: int

    @decorator(frozen=True, slots=True)
    class Derived(Base):
        b: int = 2

    class Plain(Base):
        pass

    assert Plain(1).a == 1
    assert (Derived(1).a, Derived(1).b) == (1, 2)
    assert Base(1).a == 1
    assert Base(1) != Derived(1)
    assert Base(1) != Plain(1)
    with pytest.raises(TypeError):
        Base(1, 2)


@BOTH
@pytest.mark.parametrize("fields", [0, 1, 2])
def test_equal_objects_have_one_hash_however_few_fields(decorator: Decorator, fields: int) -> None:
    names = ["a", "b"][:fields]
    plain = type("Few", (), {"__annotations__": dict.fromkeys(names, int), "__doc__": "Few."})
    cls = decorator(frozen=True)(plain)
    values = range(fields)
    assert cls(*values) == cls(*values)
    assert len({cls(*values), cls(*values)}) == 1
    assert hash(cls(*values)) == hash(tuple(values))


@BOTH
def test_methods_of_the_class_stay(decorator: Decorator) -> None:
    @decorator(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 5

        def __eq__(self, other: object) -> bool:
            return True

    assert (repr(Own(1)), hash(Own(1)), Own(1) == 3) == ("own", 5, True)

    @decorator(slots=True, eq=False)
    class ByIdentity:
        a: int

    assert ByIdentity(1) != ByIdentity(1)
    assert hash(ByIdentity(1)) is not None

    @decorator(init=False)
    class OwnInit:
        a: int

        def __init__(self) -> None:
            self.a = 9

    assert OwnInit().a == 9


@BOTH
def test_ordered_and_unsafely_hashed_classes_are_so(decorator: Decorator) -> None:
    @decorator(frozen=True, slots=True, order=True)
    class Version:
        major: int
        minor: int

    assert min(Version(2, 0), Version(1, 9), Version(1, 2)) == Version(1, 2)
    assert Version(1, 2) <= Version(1, 2) >= Version(1, 1) > Version(1, 0)
    with pytest.raises(TypeError):
        assert Version(1, 2) < (1, 3)

    @decorator(slots=True, unsafe_hash=True)
    class Changing:
        a: int
        seen: int = field(default=0, hash=False)

    one, other = Changing(1, 5), Changing(1, 6)
    assert hash(one) == hash(other)
    assert one != other
    one.a = 2
    assert one.a == 2


@BOTH
def test_fields_in_an_impossible_order_are_refused_when_the_class_is_made(
    decorator: Decorator,
) -> None:
    class Wrong:
        first: int
        second: int = 1
        third: int

    with pytest.raises(TypeError, match="non-default argument 'third' follows default argument"):
        decorator(Wrong)


@BOTH
def test_an_object_that_holds_itself_can_be_shown(decorator: Decorator) -> None:
    @decorator
    class Node:
        inner: Any = None

    node = Node()
    node.inner = node
    assert repr(node).endswith("Node(inner=...)")


def test_a_frozen_object_can_be_copied_replaced_and_pickled() -> None:
    point = Point3(1, 5, z=4)
    assert copy.copy(point) == point
    assert copy.deepcopy(point) == point
    assert pickle.loads(pickle.dumps(point)) == point
    assert dataclasses.replace(point, y=7) == Point3(1, 7, z=4)
    assert dataclasses.asdict(point) == {"x": 1, "y": 5, "tags": ("a",), "z": 4}
    match point:
        case Point3(x, y):
            assert (x, y) == (1, 5)


def test_objects_made_without_init_can_be_compared_and_shown() -> None:
    @dataclass(frozen=True, slots=True)
    class Never:
        a: int

    one, other = Never.__new__(Never), Never.__new__(Never)
    object.__setattr__(one, "a", 1)
    object.__setattr__(other, "a", 1)
    assert one == other
    assert repr(one).endswith("Never(a=1)")
    assert hash(one) == hash(other)


def test_init_is_compiled_once_and_has_the_names_of_the_fields() -> None:
    @dataclass
    class Late:
        a: int
        b: int = 2

    Late(1)
    compiled = Late.__init__
    Late(1)
    assert Late.__init__ is compiled
    assert list(inspect.signature(Late).parameters) == ["a", "b"]


def test_no_module_of_the_product_takes_the_expensive_one() -> None:
    package = Path(kaged.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*.py"))
        if path.name != "lazy_dataclass.py" and _takes_the_original(path.read_text("utf-8"))
    ]
    assert found == []


def _takes_the_original(source: str) -> bool:
    if "dataclass" not in source:
        return False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
            if any(one.name == "dataclass" for one in node.names):
                return True
        elif isinstance(node, ast.Attribute) and node.attr == "dataclass":
            return True
    return False
