"""Arguments of commands: the same values and messages as typer's own, without its validators."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from kaged.cli.conversion import Command, Group


class Colour(StrEnum):
    RED = "red"


def outcome(cls: type[TyperCommand], group: type[TyperGroup], arguments: list[str]) -> Any:
    """Return what a command is called with, or how it is refused."""
    app = typer.Typer(cls=group, rich_markup_mode=None, pretty_exceptions_enable=False)
    called: list[dict[str, Any]] = []

    @app.callback()
    def root() -> None:
        """Make it a group."""

    @app.command(cls=cls)
    def work(
        name: str,
        words: Annotated[list[str] | None, typer.Argument()] = None,
        number: Annotated[int, typer.Option(min=1, max=200)] = 50,
        maybe: int | None = None,
        place: Path | None = None,
        must_be: Annotated[Path | None, typer.Option(exists=True)] = None,
        tags: Annotated[list[str] | None, typer.Option("--tag")] = None,
        ratio: float = 0.5,
        colour: Colour = Colour.RED,
        flag: bool = False,
        upper: Annotated[str, typer.Option(parser=str.upper)] = "x",
    ) -> None:
        called.append(dict(locals()) | {"called": None})

    try:
        app(["work", *arguments], standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - compared with the other's
        return type(error).__name__, getattr(error, "message", str(error))
    values = {name: value for name, value in called[0].items() if name not in {"called", "Colour"}}
    return {name: (type(value), value) for name, value in values.items()}


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "b", "c", "--tag", "x", "--tag", "ä"],
        ["ä\u2028"],
        [""],
        ["bad\udcff"],
        ["a", "bad\udcff"],
        ["a", "--number", "1"],
        ["a", "--number", "200"],
        ["a", "--number", "0"],
        ["a", "--number", "201"],
        ["a", "--number", "-3"],
        ["a", "--number", "x"],
        ["a", "--number", ""],
        ["a", "--number", "٣"],
        ["a", "--number", " 7 "],
        ["a", "--number", "1_0"],
        ["a", "--maybe", "007"],
        ["a", "--maybe", "99999999999999999999"],
        ["a", "--place", "."],
        ["a", "--place", "nowhere/at/all"],
        ["a", "--place", ""],
        ["a", "--place", "-"],
        ["a", "--place", "bad\udcff"],
        ["a", "--must-be", "."],
        ["a", "--must-be", "nowhere"],
        ["a", "--ratio", "2.5"],
        ["a", "--ratio", "x"],
        ["a", "--colour", "red"],
        ["a", "--colour", "blue"],
        ["a", "--flag"],
        ["a", "--upper", "y"],
        [],
        ["a", "--unknown"],
    ],
)
def test_values_and_refusals_are_those_of_typer(arguments: list[str]) -> None:
    assert outcome(Command, Group, arguments) == outcome(TyperCommand, TyperGroup, arguments)


def test_a_path_that_cannot_be_read_is_refused_as_typer_does(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.write_text("x")
    closed.chmod(0)
    arguments = ["a", "--place", str(closed)]
    assert outcome(Command, Group, arguments) == outcome(TyperCommand, TyperGroup, arguments)
