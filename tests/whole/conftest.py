"""Daemons for whole tests: one for many modules, or one for a test that changes the daemon."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.lending import Lender
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

_names = itertools.count(1)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def module_path() -> Iterator[Path]:
    """Yield a folder for what a module's tests share."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="session")
def model_server() -> Iterator[ModelServer]:
    """Yield the model server of this worker."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        server = ModelServer(Path(folder))
        yield server
        server.close()


@pytest.fixture(scope="module")
def model(model_server: ModelServer) -> Iterator[ModelServer]:
    """Yield a model server that every test may play a conversation on."""
    yield model_server
    model_server.forget()


@pytest.fixture(scope="session")
def lender(model_server: ModelServer) -> Iterator[Lender]:
    """Yield who lends the modules of this worker their daemon."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        homes = (Path(folder).resolve() / f"h{number}" for number in itertools.count())
        made = Lender(lambda: next(homes), model_server.local_toml())
        yield made
        made.close()


@pytest.fixture(scope="module")
def daemon(lender: Lender) -> Iterator[Daemon]:
    """Yield the module's daemon, with the model server as its default model.

    Tests share it, also with earlier modules, so each uses a project and plugins of its own,
    and looks only at those. It begins without plugins.
    """
    yield lender.lend()
    lender.take_back()


@pytest.fixture(scope="module")
def fresh_daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that no other module has used."""
    made = Daemon(module_path / "h", local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path, model: ModelServer) -> Iterator[Callable[..., Daemon]]:
    """Yield a maker of daemons for one test: `own(config=…)`; not started yet."""
    made: list[Daemon] = []

    def make(**options: str) -> Daemon:
        options.setdefault("local", model.local_toml())
        made.append(Daemon(tmp_path / f"h{len(made)}", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a loaded project of its own on the module's daemon: all tools, its folder writable."""
    return daemon.load(Project(tmp_path / f"p{next(_names)}"))


@pytest.fixture
def plugin(daemon: Daemon, tmp_path: Path) -> Callable[..., PluginFolder]:
    """Return a maker of plugin folders, each with a name of its own: `plugin(behaviour, …)`."""

    def make(behaviour: object = None, **manifest: object) -> PluginFolder:
        name = str(manifest.pop("name", f"stub-{next(_names)}"))
        folder = tmp_path / name
        return PluginFolder(daemon, folder, behaviour, name=name, **manifest)  # type: ignore[arg-type]

    return make
