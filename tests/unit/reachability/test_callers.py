"""The search for code without callers, shown on a small tree: it finds the dead and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from reachability.callers import Reached, uncalled, uncalled_protocol_methods
from reachability.definitions import Module, read_tree

FILES = {
    "app/__init__.py": "",
    "app/main.py": """\
from kaged.parts.engine import Engine, start as begin
from kaged.parts import handlers

def run():
    begin(Engine(), handlers.TABLE)
""",
    "parts/__init__.py": """\
from kaged.parts.engine import Engine, dead, start
__all__ = ["Engine", "dead", "start"]
""",
    "parts/engine.py": """\
import asyncio
from typing import Protocol

class Port(Protocol):
    def used(self): ...
    def only_fakes_call_it(self): ...

class Engine:
    def turn(self):
        return self._inner()
    def _inner(self):
        return live()
    def stuck(self):
        return self.stuck()
    @property
    def speed(self):
        return 1

class Line(asyncio.Protocol):
    def connection_made(self, transport): ...

def start(engine, table, port: Port):
    Line()
    port.used()
    return engine.turn(), getattr(engine, "speed"), table

def live():
    return 1

def dead():
    return dead_too()

def dead_too():
    return dead()
""",
    "parts/handlers.py": """\
from kaged.parts.marks import register

def in_a_table(): ...

TABLE = {"a": in_a_table}

@register("b")
def registered(): ...

def in_no_table(): ...
""",
    "parts/marks.py": "def register(name): ...\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, Module]:
    """Return a made-up product."""
    for name, text in FILES.items():
        path = tmp_path / "kaged" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_tree(tmp_path, "kaged")


def found(tree: dict[str, Module]) -> set[str]:
    """Return what has no caller."""
    reached = Reached(tree, ["kaged.app.main"])
    return {one.qualified for one in uncalled(tree, reached, ["parts"])}


def test_dead_functions_are_found_even_when_they_call_each_other(tree: dict[str, Module]) -> None:
    assert found(tree) == {
        *("dead", "dead_too", "Engine.stuck", "in_no_table", "Port.only_fakes_call_it"),
    }


def test_a_caller_brings_a_dead_function_to_life(tree: dict[str, Module], tmp_path: Path) -> None:
    main = tmp_path / "kaged" / "app" / "main.py"
    text = main.read_text(encoding="utf-8")
    main.write_text(f"{text}    from kaged.parts.engine import dead as gone\n    gone()\n")
    assert found(read_tree(tmp_path, "kaged")) >= {"Engine.stuck"}
    assert not found(read_tree(tmp_path, "kaged")) & {"dead", "dead_too"}


def test_an_export_or_an_import_alone_is_no_caller(tree: dict[str, Module]) -> None:
    assert "dead" in found(tree)  # `parts/__init__.py` imports and exports it


def test_a_protocol_s_method_that_only_fakes_call_is_found(tree: dict[str, Module]) -> None:
    reached = Reached(tree, ["kaged.app.main"])
    methods = [one.qualified for one in uncalled_protocol_methods(tree, reached)]
    assert methods == ["Port.only_fakes_call_it"]


def test_without_a_beginning_nothing_is_reached(tree: dict[str, Module]) -> None:
    reached = Reached(tree, [])
    assert {"start", "Engine", "live"} <= {
        one.qualified for one in uncalled(tree, reached, ["parts"])
    }
