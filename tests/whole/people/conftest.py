"""One daemon with a front end, and people who come through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.people import FRONT_END, Guest, Person


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that believes the front end on this machine."""
    made = Daemon(module_path / "h", config=FRONT_END, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def guest(daemon: Daemon) -> Iterator[Callable[..., Guest]]:
    """Yield who lets people in: `guest("ann")` in private, `guest("ann", "group", "g-1")`."""
    made: list[Guest] = []

    def come(user: str, chat_type: str = "private", chat_id: str = "", **said: str) -> Guest:
        person = Person(user, chat_type, chat_id or f"private-{user}")
        made.append(Guest(daemon, person, **said))
        return made[-1]

    yield come
    for one in made:
        one.close()
