"""Daemons as processes of their own; none outlives its test, but for the one that tests share."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fakes.host_over_http import HttpHost, http_host
from fakes.running_daemon import DaemonProcess, kaged, make_home, make_project, start_daemon
from kaged.base.instance_lock import holder_of


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="session")
def shared() -> Iterator[DaemonProcess]:
    """Yield a daemon that tests of commands share; each has a project of its own on it.

    Its model says `done` to everything.
    """
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        home = make_home(Path(folder).resolve() / "h")
        (home / "script.yaml").write_text("turns: [{say: done, repeat: true}]\n", encoding="utf-8")
        local = home / "local.toml"
        local.write_text('[models.default]\nmodel = "scripted:script.yaml"\n', encoding="utf-8")
        local.chmod(0o600)
        daemon = start_daemon(home, config=None, forked=True)
        assert daemon.said["ready"], daemon.log()
        yield daemon
        daemon.stop()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a home; whatever daemon holds it at the end is ended."""
    yield tmp_path / "h"
    if holder_of(tmp_path / "h" / "run" / "daemon.lock") is not None:
        kaged(tmp_path / "h", "daemon", "stop", "--force")


@pytest.fixture
def own(home: Path) -> Path:
    """Return a home with a configuration that takes any free port."""
    return make_home(home)


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


@pytest.fixture
async def host(home: Path) -> AsyncIterator[HttpHost]:
    """Yield a daemon with a plugin host, spoken to over HTTP."""
    async with http_host(home) as made:
        yield made
