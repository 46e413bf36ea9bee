"""`kaged lsp`: the language servers of a project."""

from __future__ import annotations

from typing import Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Look at the language servers of a project.", no_args_is_help=True)

    # A group of one command needs a callback, or the command would take the group's place.
    @app.callback()
    def group() -> None:
        """Look at the language servers of a project."""

    @command(app, "status")
    def status(project: InProject = HERE, as_json: AsJson = False) -> None:
        """Show each language's server: what it is, whether it is installed and runs."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/lsp")
        output.result(found)
        output.table(
            ["language", "state", "pid", "files", "restarts", "command", "chosen by"],
            [_row(one) for one in found["servers"]],
        )
        for one in found["servers"]:
            if not one["installed"]:
                output.note(f"{one['language']}: {one['install']}")

    return app


def _row(server: dict[str, Any]) -> list[str]:
    state = server["state"] if server["installed"] else "not installed"
    return [
        server["language"],
        state,
        "" if server["pid"] is None else str(server["pid"]),
        str(server["open_files"]),
        str(server["restart_count"]),
        " ".join(server["command"]),
        server["configured_by"],
    ]
