"""`kaged man`: the manual page."""

from __future__ import annotations

import typer

from kaged.cli.context import AsJson, command
from kaged.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "man")
    def man(context: typer.Context, as_json: AsJson = False) -> None:
        """Print the manual page of all commands: `kaged man | man -l -`."""
        from kaged.cli.manual import render_manual

        output = Output(as_json=as_json)
        page = render_manual(context.find_root().command)
        output.result({"page": page})
        if not as_json:
            output.raw(page)
