"""`kaged lsp`: the language servers of a project."""

from __future__ import annotations

from typing import Any

from kaged.cli.output import Output, show_rows
from kaged.cli.runner import DaemonClient, group, project_command

app = group("Look at the language servers of a project.")


# A group of one command needs a callback, or the command would take the group's place.
@app.callback()
def lsp() -> None:
    """Look at the language servers of a project."""


def _show_servers(found: Any, output: Output) -> None:
    columns = (
        "language",
        ("state", lambda one: one["state"] if one["installed"] else "not installed"),
        "pid",
        "files=open_files",
        "restarts=restart_count",
        ("command", lambda one: " ".join(one["command"])),
        "chosen by=configured_by",
    )
    show_rows(found["servers"], columns, output)
    for one in found["servers"]:
        if not one["installed"]:
            output.note(f"{one['language']}: {one['install']}")


@project_command(app, "status", view=_show_servers)
def status(client: DaemonClient) -> Any:
    """Show the command and the state of each language's server."""
    return client.get("/lsp")
