"""Desks for whole tests: a module's own, or one for a test that changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.services import FRONT_END, Bridge, Desk

Maker = Callable[..., Desk]


def _maker(folder: Path, local: str, made: list[Desk]) -> Maker:
    def make(*bridges: Bridge, more: str = "", env: dict[str, str] | None = None) -> Desk:
        number = len(made)
        sections = "".join(one.toml() for one in bridges)
        daemon = Daemon(
            folder / f"h{number}", config=FRONT_END + sections + more, local=local, env=env
        )
        desk = Desk(daemon, folder / f"p{number}")
        made.append(desk)
        return desk

    return make


@pytest.fixture(scope="module")
def desks(module_path: Path, model: ModelServer) -> Iterator[Maker]:
    """Yield a maker of desks that a module's tests share: `desks(bridge, …).open()`."""
    made: list[Desk] = []
    yield _maker(module_path, model.local_toml(), made)
    for one in made:
        one.close()


@pytest.fixture
def own_desk(tmp_path: Path, model: ModelServer) -> Iterator[Maker]:
    """Yield a maker of desks for one test, which may stop, kill and configure them."""
    made: list[Desk] = []
    yield _maker(tmp_path, model.local_toml(), made)
    for one in made:
        one.close()
