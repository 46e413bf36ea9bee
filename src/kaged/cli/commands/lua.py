"""`kaged lua`: the Lua scripts of a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.cli.exits import Exit
from kaged.cli.inputs import read_bytes
from kaged.cli.output import Output, joined, show_rows
from kaged.cli.runner import (
    DaemonClient,
    InProject,
    command,
    daemon_command,
    group,
    in_project,
    project_command,
)

File = Annotated[Path, typer.Argument(help="The script, a file that ends in .lua.")]
Name = Annotated[str, typer.Argument(help="The command, such as undo; a leading / is allowed.")]
Words = Annotated[list[str] | None, typer.Argument(help="The command's arguments.")]
Quiet = Annotated[bool, typer.Option("--no-dialogs", help="Dismiss every dialog without asking.")]

app = group("List Lua scripts, check them and run their commands.")


def _show_scripts(found: Any, output: Output) -> None:
    columns = (
        "script=name",
        "state",
        ("granted", joined("granted", "-")),
        ("active", joined("active", "-")),
        ("commands", lambda one: ", ".join(f"/{each['name']}" for each in one["commands"]) or "-"),
    )
    show_rows(found["scripts"], columns, output)
    for one in found["scripts"]:
        if one["error"]:
            output.note(f"{one['name']}: {one['error']}")
        if one["refused"]:
            works = one["commands"] or one["events"] or one["tools"]
            idle = "" if works else " and does nothing without it"
            output.note(
                f"{one['name']}: asks for {', '.join(one['refused'])}, which is not granted{idle}; "
                f"fix: [plugins.capabilities] {one['name']} = {json.dumps(one['refused'])} in "
                "config.toml, then `kaged lua reload`."
            )
    for one in found["failed"]:
        output.note(f"{one['path']}: {one['error']}")
    for name in found["skipped"]:
        output.note(f"{name}: not in [lua] enabled")
    for problem in found["problems"]:
        output.note(f"no script is granted anything: {problem}")
    if not found["scripts"]:
        output.note(f"No scripts in {found['folder']}.")


def _show_check(found: Any, output: Output) -> Exit | None:
    output.line(f"{found['name']}: {'loads' if found['ok'] else found['error']}")
    for name, active in found["capabilities"].items():
        output.line(f"  asks for {name}: {'granted' if active else 'not granted'}")
    for each in found["commands"]:
        output.line(f"  command /{each['name']}  {each['description']}")
    if found["events"]:
        output.line(f"  listens to {', '.join(found['events'])}")
    for text in found["notices"]:
        output.line(f"  says: {text}")
    return None if found["ok"] else Exit.ERROR


def _show_outcome(found: Any, output: Output) -> Exit | None:
    for notice in found["notices"]:
        output.note(f"[{notice['script']}] {notice['message']}")
    if found["text"]:
        output.line(found["text"])
    return Exit.ERROR if found["is_error"] else None


@project_command(app, "list", view=_show_scripts)
def list_scripts(client: DaemonClient) -> Any:
    """List the scripts of a project with their state, powers and commands."""
    return client.get("/lua")


@project_command(app, "reload", view=_show_scripts)
def reload(client: DaemonClient) -> Any:
    """Read the folder and the grants again, and reload every script."""
    return client.post("/lua/reload")


@command(app, "run", view=_show_outcome)
def run(
    output: Output,
    name: Name,
    words: Words = None,
    no_dialogs: Quiet = False,
    project: InProject = ".",
) -> Any:
    """Run a command of a script, such as undo. Its dialogs are shown here."""
    from kaged.cli.commands.lua_dialogs import on_terminal, run_script_command

    interactive = on_terminal() and not no_dialogs and not output.as_json
    with in_project(project) as client, in_project(project) as second:
        raw = " ".join(words or ())
        return run_script_command(client, second, name, raw, interactive=interactive)


@daemon_command(app, "check", view=_show_check)
def check(client: DaemonClient, file: File) -> Any:
    """Load a script in its cage and show what it asks for. It cannot act."""
    if file.suffix != ".lua":
        raise typer.BadParameter(f"{file} does not end in .lua")
    source = read_bytes(file).decode("utf-8", "replace")
    return client.post("/lua/check", {"name": file.stem, "source": source})
