"""What commands use: the user's directories, the daemon, and the one place where errors end."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

import typer

from kaged.base import KagedError, SystemClock
from kaged.cli.exits import Exit, exit_of
from kaged.cli.output import Output, error_json
from kaged.config.locations import Locations

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

DEBUG_VARIABLE = "KAGED_DEBUG"


def report(error: Exception, output: Output) -> int:
    """Show an error to the person or program that ran the command; return the exit code."""
    from kaged.cli.client import DaemonRefused

    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader closed the pipe. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    if isinstance(error, DaemonRefused):
        output.error(error.code, error.message, error.fix, error.body)
        return exit_of(error.code)
    if isinstance(error, KagedError):
        output.error(error.code, error.message, error.fix, error_json(error))
        return exit_of(error.code)
    if isinstance(error, (typer.BadParameter, typer.TyperException)):
        raise error
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    internal = KagedError(
        f"{type(error).__name__}: {error}",
        fix=f"This is a bug. Run the command again with {DEBUG_VARIABLE}=1 and report the output.",
    )
    output.error(internal.code, internal.message, internal.fix, error_json(internal))
    return Exit.ERROR


def locations() -> Locations:
    """Return the directories of this user's kaged."""
    return Locations.from_env(os.environ)


def daemon(*, start: bool = True) -> DaemonClient:
    """Return a client of this user's daemon; it starts one on first use when `start` is set."""
    from kaged.cli.client import DaemonClient

    places = locations()
    return DaemonClient(places.socket, start=(lambda: start_daemon(places)) if start else None)


def start_daemon(places: Locations) -> None:
    """Start a daemon in the background, or wait for one that is being started already."""
    from kaged.cli.client import DaemonClient
    from kaged.cli.launch import start_detached, wait_until

    try:
        start_detached(places, os.environ)
    except KagedError as error:
        if error.data.get("cause") == "daemon_running":
            with DaemonClient(places.socket) as client:
                if wait_until(client.alive, SystemClock()):
                    return
        raise


def quiet_logs() -> None:
    """Keep log lines out of the output; for commands that open the store themselves."""
    from kaged.config.coresections import LogLevel
    from kaged.config.log_setup import configure_logging

    configure_logging(LogLevel.WARNING)
