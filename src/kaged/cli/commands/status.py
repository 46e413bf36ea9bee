"""`kaged status`: is there a daemon, and what is its status."""

from __future__ import annotations

from typing import Any

import typer

from kaged.cli.context import AsJson, NoStart, command, daemon
from kaged.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "status")
    def status(as_json: AsJson = False, no_start: NoStart = False) -> None:
        """Show which daemon this is and its status; starts one when none runs."""
        with daemon(start=not no_start) as client:
            show_status(client.get("/status"), Output(as_json=as_json))


def show_status(found: dict[str, Any], output: Output) -> None:
    """Show a daemon's answer about itself."""
    output.result(found)
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
    for warning in found["warnings"]:
        output.note(f"warning: {warning}")
