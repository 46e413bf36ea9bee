"""`kaged status`: whether a daemon runs, and its state."""

from __future__ import annotations

from typing import Any

import typer

from kaged.cli.output import Output
from kaged.cli.runner import DaemonClient, daemon_command

app = typer.Typer()


def show_status(found: Any, output: Output) -> None:
    """Show a daemon's answer about itself."""
    trail = found["audit"]
    output.fields(
        {
            "version": found["version"],
            "pid": found["pid"],
            "up since": found["started_at"],
            "home": found["home"],
            "socket": found["socket"],
            "url": found["url"],
            "auth": found["auth_mode"],
            "projects": found["projects"],
            "limits": found["limits"],
            "audit": (
                f"ok, {trail['head_seq']} events"
                if trail["ok"]
                else f"NOT WRITABLE, changes are refused: {trail['last_error']}"
            ),
        }
    )
    for project in found["opening"]:
        output.note(f"opening: {project}")
    for warning in found["warnings"]:
        output.note(f"warning: {warning}")


@daemon_command(app, "status", view=show_status, no_start=True)
def status(client: DaemonClient) -> Any:
    """Show the daemon's version, addresses and state. Starts one if none is running."""
    return client.get("/status")
