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
    """Run the daemon until it is told to stop; gives the exit code."""
    # Loading makes only objects that stay; looking for garbage among them costs a third of the
    # start. The daemon switches the collector on again once it is ready.
    gc.disable()
    # Nothing installed beside the daemon gets to look into its models, and nobody searches for it.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _load_structlog_alone()
    from kaged.app.daemon import run_daemon
    from kaged.app.ready import ReadySignal
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


def _load_structlog_alone() -> None:
    """Load structlog without rich, which it loads for tracebacks that a daemon never paints."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # the documented way to block an import
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]


__all__ = ["run_foreground"]
