"""`kaged daemon run`: the daemon in this process, and its errors as every command shows them."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

from kaged.base import KagedError
from kaged.cli.exits import exit_of
from kaged.cli.output import Output, error_json


def run_foreground(log_file: str | None) -> int:
    """Run the daemon until it is told to stop; returns the exit code."""
    # Loading makes only objects that stay; looking for garbage among them costs a third of the
    # start. The daemon switches the collector on again once it is ready.
    gc.disable()
    # Nothing installed beside the daemon gets to look into its models, and nobody searches for it.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _load_without_extras()
    from kaged.app.daemon import run_daemon
    from kaged.base.ready_signal import ReadySignal
    from kaged.config import Locations

    ready = ReadySignal.from_env(os.environ)
    path = None if log_file is None else Path(log_file)
    try:
        return run_daemon(Locations.from_env(os.environ), os.environ, ready, log_file=path)
    except KagedError as error:
        ready.failed(error_json(error))
        output = Output(as_json=False)
        output.error(error.code, error.message, error.fix, None)
        return exit_of(error.code)


_UNUSED = ("rich", "watchfiles", "dotenv")
"""What the daemon's libraries load where it is installed, and the daemon never uses: painted
tracebacks, a server that restarts itself, settings from files that nobody named."""


def _load_without_extras() -> None:
    """Load the daemon's libraries without their optional companions."""
    blocked = [name for name in _UNUSED if name not in sys.modules]
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]  # the documented way to block an import
    try:
        for library in ("structlog", "uvicorn"):
            importlib.import_module(library)
    finally:
        for name in blocked:
            del sys.modules[name]
