"""What every command has at hand: places, output, the daemon; and the one place errors end."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from kaged.base import KagedError, SystemClock
from kaged.cli.exits import Exit, exit_of
from kaged.cli.output import Output, error_json
from kaged.config.locations import Locations

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

P = ParamSpec("P")

DEBUG_VARIABLE = "KAGED_DEBUG"

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and errors as JSON on stderr.")
]
Lines = Annotated[int, typer.Option("--lines", "-n", min=1, max=200, help="How many at most.")]
NoStart = Annotated[
    bool, typer.Option("--no-start", help="Do not start a daemon when none is running.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Do not ask the daemon; read the files directly.")
]


def command(app: typer.Typer, name: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command whose errors are shown with code and fix and end in the right exit code.

    Commands that take `as_json` show their errors as JSON, too.
    """

    def register(work: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(work)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                work(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  # boundary: command; every error has an exit
                code = report(error, Output(as_json=bool(kwargs.get("as_json"))))
                raise typer.Exit(code) from None

        app.command(name)(guarded)
        return guarded

    return register


def report(error: Exception, output: Output) -> int:
    """Show an error to the person or program that ran the command; returns the exit code."""
    from kaged.cli.client import DaemonRefused

    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader has seen enough. Python would complain again when it flushes at exit.
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
        fix=f"This is a bug. Run it again with {DEBUG_VARIABLE}=1 and report what you see.",
    )
    output.error(internal.code, internal.message, internal.fix, error_json(internal))
    return Exit.ERROR


def locations() -> Locations:
    """Find the places that this user's kaged lives in."""
    return Locations.from_env(os.environ)


def daemon(*, start: bool = True) -> DaemonClient:
    """Return a client of this user's daemon; it starts one on first use when `start` is set."""
    from kaged.cli.client import DaemonClient

    places = locations()
    return DaemonClient(places.socket, start=(lambda: start_daemon(places)) if start else None)


def start_daemon(places: Locations) -> dict[str, Any]:
    """Bring a daemon up in the background; another one that came up meanwhile is as good."""
    from kaged.cli.client import DaemonClient
    from kaged.cli.launch import DaemonStartFailed, NotStarted, start_detached, wait_until

    started = start_detached(places, os.environ)
    if not isinstance(started, NotStarted):
        return dict(started.facts)
    if started.code == "daemon_running":
        with DaemonClient(places.socket) as client:
            if wait_until(client.alive, SystemClock()):
                return {}
    raise DaemonStartFailed(started.message, fix=started.fix, cause=started.code)


def quiet_logs() -> None:
    """Keep what libraries log off the result; for commands that open the store themselves."""
    from kaged.config.coresections import LogLevel
    from kaged.config.log_setup import configure_logging

    configure_logging(LogLevel.WARNING)
