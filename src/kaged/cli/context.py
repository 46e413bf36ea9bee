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
    from kaged.cli.remote import RemoteDaemon

DEBUG_VARIABLE = "KAGED_DEBUG"
URL_VARIABLE = "KAGED_URL"
"""The daemon to use instead of this user's own; `kaged --url` sets it."""


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
    """Return a client of this user's daemon; it starts one on first use when `start` is set.

    With `KAGED_URL` it is the daemon there, which is never started.
    """
    from kaged.cli.client import DaemonClient

    places = locations()
    remote = remote_daemon()
    if remote is not None:
        return DaemonClient(places.socket, remote=remote)
    return DaemonClient(places.socket, start=(lambda: start_daemon(places)) if start else None)


def remote_daemon() -> RemoteDaemon | None:
    """Return the daemon that `KAGED_URL` names; None when it is this user's own.

    Raises:
        KagedError: `url_invalid`; it is no URL of a daemon.
    """
    if not os.environ.get(URL_VARIABLE):
        return None
    from kaged.cli.logins import Logins
    from kaged.cli.remote import RemoteDaemon, parse_daemon_url

    return RemoteDaemon(
        parse_daemon_url(os.environ[URL_VARIABLE]), Logins(locations()), SystemClock()
    )


def require_own_daemon(instead: str) -> None:
    """Raise `url_invalid` where a command needs the daemon of this machine."""
    if os.environ.get(URL_VARIABLE):
        raise KagedError(
            f"This command is for the daemon of this machine, and {URL_VARIABLE} names another.",
            code="url_invalid",
            fix=instead,
        )


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
