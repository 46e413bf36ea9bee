"""The walks of the architecture page name functions that exist."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
HEADING = re.compile(r"^#+ (.+)$")
ITEM = re.compile(r"^\d+\. (.*)$")
FUNCTION = re.compile(r"^`(kaged(?:\.\w+)+)` \S")


def read_walks() -> dict[str, list[str]]:
    """Return the numbered items below each heading that begins with "Walk"."""
    walks: dict[str, list[str]] = {}
    items: list[str] | None = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        heading, item = HEADING.match(line), ITEM.match(line)
        if heading is not None:
            title = heading[1]
            items = walks.setdefault(title, []) if title.startswith("Walk") else None
        elif item is not None and items is not None:
            items.append(item[1])
    return walks


WALKS = read_walks()
HOPS = [(title, item) for title, items in WALKS.items() for item in items]


def resolve(path: str) -> object:
    """Return what a dotted path names; raises AssertionError with the part that is missing."""
    parts = path.split(".")
    found: object = importlib.import_module(parts[0])
    module = parts[0]
    for part in parts[1:]:
        if not hasattr(found, part) and inspect.ismodule(found):
            module = f"{module}.{part}"
            assert importlib.util.find_spec(module) is not None, f"{path}: there is no {module}"
            found = importlib.import_module(module)
            continue
        assert hasattr(found, part), f"{path}: there is no {part} in {found!r}"
        found = getattr(found, part)
        module = f"{module}.{part}"
    return found


def hop_id(value: str) -> str:
    """Return the function of a hop as the name of its test."""
    return value.split("`")[1] if "`" in value else value


def test_there_are_seven_walks() -> None:
    assert len(WALKS) == 7, list(WALKS)


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_has_8_to_14_hops(title: str) -> None:
    assert 8 <= len(WALKS[title]) <= 14, f"{title}: {len(WALKS[title])} hops"


@pytest.mark.parametrize(("title", "item"), HOPS, ids=hop_id)
def test_every_hop_names_a_function_that_exists(title: str, item: str) -> None:
    function = FUNCTION.match(item)
    assert function is not None, f"{title}: {item!r} does not begin with a function and a reason"
    assert callable(resolve(function[1])), f"{title}: {function[1]} is not callable"


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="no_such_thing"):
        resolve("kaged.tools.dispatch.ToolDispatcher.no_such_thing")


def test_a_module_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match=r"kaged\.tools\.dispatcher"):
        resolve("kaged.tools.dispatcher.dispatch")
