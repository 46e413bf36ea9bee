"""A bridge that answers with as much as an envelope may hold, while others ask for the status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.services import Bridge, Desk, capability, operation, somebody
from whole.harness.status_watch import WORST_S, held_up_s

BOX = "vast.box"
SHAPES = {
    "text": {"words": "x" * 190_000},
    "keys": {f"{n:05x}": 0 for n in range(9_000)},
    "lists": {"rows": [[[n]] for n in range(6_000)]},
    "escapes": {"words": "\n\u0001" * 30_000},
    "too-many": {"rows": [[] for _ in range(400_000)]},
    "too-long": {"words": "x" * 5_000_000},
}
REFUSED = ("too-many", "too-long")


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path) -> Desk:
    offered = capability(BOX, *(operation(one) for one in SHAPES))
    plan = {
        "definitions": [offered],
        "operations": {one: {"output": value} for one, value in SHAPES.items()},
    }
    return desks(Bridge(module_path, "vast", plan)).open()


@pytest.mark.parametrize("shape", SHAPES)
def test_no_answer_of_a_bridge_holds_up_others(desk: Desk, shape: str) -> None:
    person = somebody()
    desk.link(person, BOX)
    if shape in REFUSED:

        def act() -> None:
            assert desk.code(person, BOX, shape) == "capability_invalid_output"

    else:

        def act() -> None:
            assert desk.invoke(person, BOX, shape) == SHAPES[shape]

    assert held_up_s(desk.daemon, act) < WORST_S
