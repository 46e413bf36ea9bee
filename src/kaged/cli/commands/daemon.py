"""`kaged daemon`: run, start, stop and inspect the daemon; its token and its launch link."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.base import SystemClock
from kaged.cli.commands.status import show_status
from kaged.cli.context import daemon, locations, start_daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output
from kaged.cli.runner import DaemonClient, command, daemon_command, group

NoSandbox = Annotated[
    bool,
    typer.Option("--no-sandbox", help="Run agents' commands without a cage; plugins stay caged."),
]

app = group("Run, start, stop and inspect the daemon.")


@command(app, "run", json=False)
def run(
    log_file: Annotated[
        Path | None,
        typer.Option(help="Write the log to this file, rotated, instead of to standard error."),
    ] = None,
    no_sandbox: NoSandbox = False,
) -> None:
    """Run the daemon in the foreground until it is stopped."""
    from kaged.cli.foreground import run_foreground

    _set_sandbox(off=no_sandbox)
    raise typer.Exit(run_foreground(None if log_file is None else str(log_file)))


@command(app, "start", view=show_status)
def start(output: Output, no_sandbox: NoSandbox = False) -> Any:
    """Start a daemon in the background, unless one is running."""
    _set_sandbox(off=no_sandbox)
    with daemon(start=False) as client:
        if client.alive():
            output.note("A daemon is running already.")
        else:
            start_daemon(locations())
        return client.get("/status")


@command(app, "stop")
def stop(
    output: Output,
    force: Annotated[
        bool, typer.Option("--force", help="Kill the daemon if it does not stop in time.")
    ] = False,
) -> None:
    """Stop the daemon and wait until it has ended. It is no error if none is running."""
    from kaged.cli.launch import stop_daemon

    holder = stop_daemon(locations().lock, SystemClock(), force=force)
    output.result({"stopped": holder is not None, "pid": holder.pid if holder else None})
    output.line(f"Stopped (pid {holder.pid})." if holder else "No daemon was running.")


@command(app, "status", view=show_status)
def status() -> Any:
    """Show the running daemon. Exit code 5 if there is none."""
    with daemon(start=False) as client:
        return client.get("/status")


@command(app, "unit")
def unit(
    output: Output,
    system: Annotated[
        bool, typer.Option("--system", help="For the whole machine, under its own user.")
    ] = False,
) -> None:
    """Print a systemd unit that keeps the daemon running."""
    from kaged.cli.units import unit_file

    text = unit_file(_own_command(), system=system)
    output.text(text.rstrip("\n"), {"unit": text})


@command(app, "token")
def token(
    output: Output,
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Create a new token; the old one and all browser sessions end."
        ),
    ] = False,
) -> None:
    """Print the bearer token for the TCP listener."""
    from kaged.config.token_file import TokenFile, read_token, token_file

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
    output.text(value, {"token": value, "token_file": str(path)})


@daemon_command(app, "open", no_start=True)
def open_browser(
    client: DaemonClient,
    output: Output,
    print_only: Annotated[
        bool, typer.Option("--print", help="Only print the link; open no browser.")
    ] = False,
) -> None:
    """Open the daemon in a browser. The link works once and for one minute."""
    link = client.post("/auth/launch")
    output.result(link)
    output.line(link["url"])
    if not print_only and output.for_people:
        import webbrowser

        if not webbrowser.open(link["url"]):
            output.note("No browser could be opened. Use the link above within a minute.")
            raise typer.Exit(Exit.ERROR)


def _own_command() -> str:
    """Return the absolute path of the running command, or of the one beside the interpreter."""
    own = Path(sys.argv[0])
    return str((own if own.name == "kaged" else Path(sys.executable).with_name("kaged")).absolute())


def _set_sandbox(*, off: bool) -> None:
    # Through the environment, so that it outlives a reload and reaches a daemon in the background.
    if off:
        from kaged.config.settings import NO_SANDBOX_VARIABLE

        os.environ[NO_SANDBOX_VARIABLE] = "1"
