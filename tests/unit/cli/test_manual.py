"""The manual page has every command, option and exit code, and is well formed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from kaged import __version__
from kaged.cli.app import build
from kaged.cli.exits import Exit
from kaged.cli.manual import render_manual
from unit.cli.test_command_tree import COMMANDS

PAGE = render_manual(typer.main.get_command(build()))
SECTIONS = {re.sub(r"\\f.|\\", "", part.splitlines()[0]): part for part in PAGE.split("\n.SS ")[1:]}


def plain(text: str) -> str:
    return re.sub(r"\\f.", "", text).replace("\\-", "-")


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_is_there_with_its_help_and_options(path: str) -> None:
    found = [text for head, text in SECTIONS.items() if re.fullmatch(rf"{path}( [\[A-Z].*)?", head)]
    assert len(found) == 1, path
    section = plain(found[0])
    command: Any = COMMANDS[path]
    assert " ".join(command.help.split("\n\n")[0].replace("`", "").split()) in section
    for one in command.params:
        names = [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else []
        for name in names:
            assert name in section, (path, name)


def test_the_page_states_its_version_and_every_exit_code() -> None:
    assert PAGE.startswith(f'.TH KAGED 1 "" "kaged {__version__}"')
    after = PAGE.split(".SH EXIT STATUS")[1].split(".SH ")[0]
    assert [int(code) for code in re.findall(r"^\.B (\d+)$", after, re.MULTILINE)] == list(Exit)


def test_no_text_is_taken_for_an_instruction() -> None:
    app = typer.Typer()

    @app.command("odd")
    def odd() -> None:
        """.SH is what this says, and a \\ and a -dash."""

    @app.command("other")
    def other() -> None:
        """'tis another."""

    page = render_manual(typer.main.get_command(app))
    assert "\n\\&.SH is what this says, and a \\e and a \\-dash.\n" in page
    assert "\n\\&'tis another.\n" in page
    known = {"TH", "SH", "SS", "TP", "PP", "B"}
    assert set(re.findall(r"^\.(\w+)", PAGE, re.MULTILINE)) <= known


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(build(), ["man"])
    assert (done.exit_code, done.stdout) == (0, f"{PAGE}\n")
