"""Every command has help, every command is documented, and asking for the version is cheap."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kaged import __version__
from kaged.cli.app import build, run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"
WITHOUT_JSON = {"kaged acp", "kaged daemon run", "kaged cage run", "kaged cage shell"}


def _commands(only: str | None = None) -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield path, command
            return
        for name, one in below.items():
            yield from walk(one, f"{path} {name}")

    yield from walk(typer.main.get_command(build(only)), "kaged")


COMMANDS = dict(_commands())


def test_none_of_these_commands_is_missing() -> None:
    assert set(COMMANDS) >= {
        "kaged status", "kaged doctor", "kaged schema", "kaged completion",
        "kaged daemon run", "kaged daemon start", "kaged daemon stop", "kaged daemon status",
        "kaged daemon token", "kaged daemon open",
        "kaged project init", "kaged project check", "kaged project show", "kaged project load",
        "kaged project list", "kaged project reload", "kaged project unload",
        "kaged project trust",
        "kaged audit tail", "kaged audit query", "kaged audit verify", "kaged audit export",
        "kaged cage explain", "kaged cage shell",
        "kaged pipeline check", "kaged pipeline explain", "kaged pipeline trace",
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_and_json(path: str) -> None:
    command = COMMANDS[path]
    assert command.help, path
    options = {option for one in command.params for option in one.opts}
    assert ("--json" in options) is (path not in WITHOUT_JSON)
    for one in command.params:
        assert getattr(one, "help", None), (path, one.name)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_page_has_every_command_and_flag(path: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    row = next((line for line in page.splitlines() if line.startswith(f"| `{path}")), "")
    assert row, f"{path} is missing in {PAGE.name}"
    everywhere = {"--json", "--no-start", "--offline", "--help", "-h"}
    for one in COMMANDS[path].params:
        if one.param_type_name != "option":
            continue
        for option in {*one.opts, *one.secondary_opts} - everywhere:
            assert f"`{option}" in row or f" {option} " in row or path == "kaged audit export", (
                f"{option} of {path} is missing in {PAGE.name}"
            )


def test_the_reference_page_lists_no_command_that_does_not_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("| `kaged ") and "--" not in line.split("`")[1]:
            words = line.split("`")[1].split()
            name = " ".join(word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word))
            assert name in COMMANDS, line


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_page_lists_no_flag_that_does_not_exist(path: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{path}"))
    options = {
        option
        for one in COMMANDS[path].params
        for option in (*one.opts, *one.secondary_opts)
        if one.param_type_name == "option"
    }
    own = row.replace("man -l -", "")  # the flag of another program
    named = {word for code in re.findall(r"`(-[^`]*)`", own) for word in code.split()[:1]}
    assert named - {"-", "--"} <= options, path


@pytest.mark.parametrize("arguments", [[], ["daemon"], ["nonsense"], ["status", "--nonsense"]])
def test_a_line_that_makes_no_sense_is_exit_code_2(arguments: list[str]) -> None:
    assert run(arguments) == 2


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_printed(flag: str) -> None:
    done = CliRunner().invoke(build(), [flag])
    assert (done.exit_code, done.stdout) == (0, f"kaged {__version__}\n")


def test_asking_for_the_version_loads_nothing_but_the_version() -> None:
    script = (
        "import sys; sys.argv = ['kaged', '--version']\n"
        "from kaged.cli.main import main\n"
        "main()\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in"
        " {'typer', 'rich', 'httpx', 'pydantic', 'fastapi', 'asyncio', 'sqlalchemy'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"kaged {__version__}\n[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["daemon", "-h"], ["project", "check", "-h"]])
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    """Completion and help answer while one types; they must not wait for the daemon's libraries."""
    script = (
        f"import sys; sys.argv = ['kaged', *{arguments!r}]\n"
        "from kaged.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join(name for name in ('httpx', 'fastapi', 'sqlalchemy',"
        " 'uvicorn', 'structlog') if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""


@pytest.mark.parametrize("name", dict.fromkeys(path.split()[1] for path in COMMANDS))
def test_a_part_of_the_tree_is_the_same_as_in_the_whole(name: str) -> None:
    part = dict(_commands(name))
    if name == "man":
        assert part.keys() == COMMANDS.keys()  # it describes them all
        return
    assert list(part) == [path for path in COMMANDS if path.split()[1] == name]
    for path, command in part.items():
        whole = COMMANDS[path]
        assert command.help == whole.help
        assert [one.opts for one in command.params] == [one.opts for one in whole.params]


def test_a_command_loads_no_other() -> None:
    script = (
        "import sys; sys.argv = ['kaged', 'status', '-h']\n"
        "from kaged.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join(name for name in sys.modules"
        " if name.startswith('kaged.cli.commands.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "kaged.cli.commands.status"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_script_for_each_shell(shell: str) -> None:
    done = CliRunner().invoke(build(), ["completion", shell])
    assert done.exit_code == 0
    assert "_KAGED_COMPLETE" in done.stdout


def test_schemas_are_listed_and_printed_as_json() -> None:
    import json

    names = CliRunner().invoke(build(), ["schema", "--json"])
    assert "project-v1" in json.loads(names.stdout)
    schema = CliRunner().invoke(build(), ["schema", "project-v1"])
    assert json.loads(schema.stdout)["$id"].endswith("project-v1.json")
    missing = CliRunner().invoke(build(), ["schema", "nonsense"])
    assert missing.exit_code == 3
