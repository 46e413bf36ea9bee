"""`kaged lua`: the Lua scripts of a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, in_project
from kaged.cli.context import AsJson, command, daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output

if TYPE_CHECKING:
    from kaged.cli.commands.inproject import ProjectClient

MAX_SOURCE_BYTES = 1024 * 1024

File = Annotated[Path, typer.Argument(help="The script, a file that ends in .lua.")]
Name = Annotated[str, typer.Argument(help="The command, such as undo; a leading / is allowed.")]
Words = Annotated[list[str] | None, typer.Argument(help="What follows it.")]
Quiet = Annotated[
    bool, typer.Option("--no-dialogs", help="Ask nothing; dialogs count as dismissed.")
]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(
        help="Lua scripts: look at them and run their commands.", no_args_is_help=True
    )

    @command(app, "list")
    def list_scripts(project: InProject = HERE, as_json: AsJson = False) -> None:
        """List the scripts of a project with their state, powers and commands."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/lua")
        _show(found, output)

    @command(app, "reload")
    def reload(project: InProject = HERE, as_json: AsJson = False) -> None:
        """Read the folder and the grants again, and load every script anew."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.post("/lua/reload")
        _show(found, output)

    @command(app, "run")
    def run(
        name: Name,
        words: Words = None,
        no_dialogs: Quiet = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Run a command of a script, such as undo; its questions are asked here."""
        from kaged.cli.commands.lua_dialogs import on_terminal, run_script_command

        output = Output(as_json=as_json)
        interactive = on_terminal() and not no_dialogs and not as_json
        with in_project(project) as client, in_project(project) as other:

            def second() -> ProjectClient:
                return other

            found = run_script_command(
                client, second, name, " ".join(words or ()), interactive=interactive
            )
        output.result(found)
        for notice in found["notices"]:
            output.note(f"[{notice['script']}] {notice['message']}")
        if found["text"]:
            output.line(found["text"])
        if found["is_error"]:
            raise typer.Exit(Exit.ERROR)

    @command(app, "check")
    def check(file: File, as_json: AsJson = False) -> None:
        """Load a script in its cage without letting it do anything; show what it asks for."""
        output = Output(as_json=as_json)
        if file.suffix != ".lua":
            raise typer.BadParameter(f"{file} does not end in .lua")
        with file.open("rb") as source:
            data = source.read(MAX_SOURCE_BYTES + 1)
        if len(data) > MAX_SOURCE_BYTES:
            raise typer.BadParameter(f"{file} has more than {MAX_SOURCE_BYTES} bytes")
        with daemon() as client:
            found = client.post(
                "/lua/check", {"name": file.stem, "source": data.decode("utf-8", "replace")}
            )
        output.result(found)
        _show_check(found, output)
        if not found["ok"]:
            raise typer.Exit(Exit.ERROR)

    return app


def _show(found: dict[str, Any], output: Output) -> None:
    output.result(found)
    output.table(
        ["script", "state", "granted", "active", "commands"],
        [
            [
                one["name"],
                one["state"],
                ", ".join(one["granted"]) or "-",
                ", ".join(one["active"]) or "-",
                ", ".join(f"/{each['name']}" for each in one["commands"]) or "-",
            ]
            for one in found["scripts"]
        ],
    )
    for one in found["scripts"]:
        if one["error"]:
            output.note(f"{one['name']}: {one['error']}")
    for one in found["failed"]:
        output.note(f"{one['path']}: {one['error']}")
    for name in found["skipped"]:
        output.note(f"{name}: not in [lua] enabled")
    for problem in found["problems"]:
        output.note(f"no script is granted anything: {problem}")
    if not found["scripts"]:
        output.note(f"No scripts in {found['folder']}.")


def _show_check(found: dict[str, Any], output: Output) -> None:
    output.line(f"{found['name']}: {'loads' if found['ok'] else found['error']}")
    for name, active in found["capabilities"].items():
        output.line(f"  asks for {name}: {'granted' if active else 'not granted'}")
    for each in found["commands"]:
        output.line(f"  command /{each['name']}  {each['description']}")
    if found["events"]:
        output.line(f"  listens to {', '.join(found['events'])}")
    for text in found["notices"]:
        output.line(f"  says: {text}")
