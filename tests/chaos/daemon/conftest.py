"""Daemons as processes of their own; none outlives its test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.running_daemon import DaemonProcess, make_project, start_daemon
from kaged.base import SystemClock
from kaged.cli.launch import stop_daemon


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a home; whatever daemon holds it at the end is ended."""
    yield tmp_path / "h"
    stop_daemon(tmp_path / "h" / "run" / "daemon.lock", SystemClock(), force=True)


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Yield a function that starts a daemon and waits until it is ready or gave up.

    Without an `argv` of its own it has loaded its modules already: what happens to it is the test.
    """
    started: list[DaemonProcess] = []

    def begin(where: Path | None = None, **options: object) -> DaemonProcess:
        options.setdefault("forked", "argv" not in options)
        daemon = start_daemon(where or home, **options)  # type: ignore[arg-type]
        started.append(daemon)
        return daemon

    yield begin
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.kill()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the root of a project with two agents."""
    return make_project(tmp_path / "sample")
