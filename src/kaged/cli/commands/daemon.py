"""`kaged daemon`: run, start, stop and look at the daemon; its token and its launch link."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kaged.base import SystemClock
from kaged.cli.commands.status import show_status
from kaged.cli.context import AsJson, NoStart, command, daemon, locations, start_daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output

NoSandbox = Annotated[
    bool,
    typer.Option("--no-sandbox", help="Agents' commands run without a cage; plugins never do."),
]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Run, start, stop and look at the daemon.", no_args_is_help=True)
    _register_life(app)
    _register_access(app)
    return app


def _register_life(app: typer.Typer) -> None:
    @command(app, "run")
    def run(
        log_file: Annotated[
            Path | None,
            typer.Option(help="Write the log there, rotated, instead of to standard error."),
        ] = None,
        no_sandbox: NoSandbox = False,
    ) -> None:
        """Run the daemon in the foreground until it is told to stop."""
        from kaged.cli.foreground import run_foreground

        _set_sandbox(off=no_sandbox)
        raise typer.Exit(run_foreground(None if log_file is None else str(log_file)))

    @command(app, "start")
    def start(as_json: AsJson = False, no_sandbox: NoSandbox = False) -> None:
        """Start a daemon in the background, unless one is running."""
        output = Output(as_json=as_json)
        _set_sandbox(off=no_sandbox)
        with daemon(start=False) as client:
            if client.alive():
                output.note("A daemon is running already.")
            else:
                start_daemon(locations())
            show_status(client.get("/status"), output)

    @command(app, "stop")
    def stop(
        as_json: AsJson = False,
        force: Annotated[
            bool, typer.Option("--force", help="Kill it if it does not end by itself.")
        ] = False,
    ) -> None:
        """Stop the daemon and wait until it has ended. No daemon is no error."""
        from kaged.cli.launch import stop_daemon

        output = Output(as_json=as_json)
        holder = stop_daemon(locations().lock, SystemClock(), force=force)
        output.result({"stopped": holder is not None, "pid": holder.pid if holder else None})
        output.line(f"Stopped (pid {holder.pid})." if holder else "No daemon was running.")

    @command(app, "status")
    def status(as_json: AsJson = False) -> None:
        """Show the running daemon; exit code 5 when there is none."""
        with daemon(start=False) as client:
            show_status(client.get("/status"), Output(as_json=as_json))

    @command(app, "unit")
    def unit(
        as_json: AsJson = False,
        system: Annotated[
            bool, typer.Option("--system", help="For the whole machine, under a user of its own.")
        ] = False,
    ) -> None:
        """Print a systemd unit that keeps the daemon running."""
        from kaged.cli.units import unit_file

        output = Output(as_json=as_json)
        text = unit_file(_own_command(), system=system)
        output.result({"unit": text})
        if not as_json:
            output.raw(text.rstrip("\n"))


def _own_command() -> str:
    """Return the absolute path of the running command, or of the one beside the interpreter."""
    own = Path(sys.argv[0])
    return str((own if own.name == "kaged" else Path(sys.executable).with_name("kaged")).absolute())


def _set_sandbox(*, off: bool) -> None:
    # Through the environment, so that it outlives a reload and reaches a daemon in the background.
    if off:
        from kaged.config.settings import NO_SANDBOX_VARIABLE

        os.environ[NO_SANDBOX_VARIABLE] = "1"


def _register_access(app: typer.Typer) -> None:
    @command(app, "token")
    def token(
        as_json: AsJson = False,
        rotate: Annotated[
            bool,
            typer.Option(
                "--rotate", help="Make a new one; the old one and all browser sessions end."
            ),
        ] = False,
    ) -> None:
        """Print the bearer token for the TCP listener."""
        from kaged.config.token_file import TokenFile, read_token, token_file

        output = Output(as_json=as_json)
        path = token_file(locations())
        if rotate:
            with daemon(start=False) as client:
                if client.alive():
                    client.post("/auth/token/rotate")
                else:
                    TokenFile.open(path, os.getuid()).rotate()
        else:
            TokenFile.open(path, os.getuid())
        value = read_token(path, os.getuid())
        output.result({"token": value, "token_file": str(path)})
        if not as_json:
            output.raw(value)

    @command(app, "open")
    def open_browser(
        as_json: AsJson = False,
        no_start: NoStart = False,
        print_only: Annotated[
            bool, typer.Option("--print", help="Only print the link; open no browser.")
        ] = False,
    ) -> None:
        """Open the daemon in a browser, by a link that works once within a minute."""
        output = Output(as_json=as_json)
        with daemon(start=not no_start) as client:
            link = client.post("/auth/launch")
        output.result(link)
        output.line(link["url"])
        if not as_json and not print_only and sys.stdout.isatty():
            import webbrowser

            if not webbrowser.open(link["url"]):
                output.note("No browser could be opened; use the link above within a minute.")
                raise typer.Exit(Exit.ERROR)
