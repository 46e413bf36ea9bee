"""A spawner on this very machine, and places that cages of any user can reach."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fakes.stocked_cache import stocked
from kaged.base import JsonObject
from kaged.cage import CageSettings, Spawner


class Events:
    """Remembers the audit events of a spawner."""

    def __init__(self) -> None:
        self.all: list[tuple[str, JsonObject]] = []

    def __call__(self, name: str, data: JsonObject) -> None:
        self.all.append((name, data))

    def names(self) -> list[str]:
        return [name for name, _ in self.all]

    def last(self, name: str) -> JsonObject:
        return [data for found, data in self.all if found == name][-1]


@pytest.fixture(scope="session")
def cage_cache() -> Iterator[Path]:
    """A cache directory for all cages of a test run, open to other users."""
    folder = Path(tempfile.mkdtemp(prefix="kaged-cache-"))
    folder.chmod(0o755)
    yield stocked(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach; pytest's own is private."""
    folder = Path(tempfile.mkdtemp(prefix="kaged-place-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def events() -> Events:
    """The audit events of the test's spawner."""
    return Events()


@pytest.fixture
async def spawner(cage_cache: Path, events: Events) -> AsyncIterator[Spawner]:
    """A spawner with the strongest back ends of this machine."""
    found = Spawner(CageSettings(cache_dir=cage_cache), on_event=events)
    yield found
    await found.close()
