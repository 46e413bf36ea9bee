from __future__ import annotations

import dataclasses

import pytest

from kaged.config.frozen import frozen


@frozen
class Point:
    x: int
    y: int = 2
    tags: tuple[str, ...] = dataclasses.field(default_factory=lambda: ("a",))


@frozen
class Point3(Point):
    z: int = 9


def test_a_frozen_class_takes_arguments_like_a_dataclass() -> None:
    assert Point(1) == Point(x=1, y=2, tags=("a",))
    assert Point(1, 5).y == 5
    assert Point3(1).z == 9
    assert repr(Point(1)) == "Point(x=1, y=2, tags=('a',))"
    assert Point(1) != Point(2)
    assert Point(1) != Point3(1)
    assert len({Point(1), Point(1), Point(2)}) == 2


def test_a_frozen_class_works_with_the_tools_for_dataclasses() -> None:
    assert dataclasses.replace(Point(1), y=7) == Point(1, 7)
    assert [item.name for item in dataclasses.fields(Point3)] == ["x", "y", "tags", "z"]


def test_a_frozen_object_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 3  # pyright: ignore[reportAttributeAccessIssue] - what this test is about
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x  # pyright: ignore[reportAttributeAccessIssue] - as above
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(point, "other", 1)


@pytest.mark.parametrize(
    "build",
    [
        Point,
        lambda: Point(1, 2, ("a",), 4),  # pyright: ignore[reportCallIssue] - as above
        lambda: Point(1, x=1),  # pyright: ignore[reportCallIssue] - as above
        lambda: Point(1, w=1),  # pyright: ignore[reportCallIssue] - as above
    ],
)
def test_wrong_arguments_are_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(TypeError):
        build()
