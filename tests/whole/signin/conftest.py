"""One provider, one daemon that trusts it, and people with browsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.openid import LOCAL, Browser, OpenIdServer


@pytest.fixture(scope="module")
def provider(module_path: Path) -> Iterator[OpenIdServer]:
    """Yield a provider that other people wrote."""
    made = OpenIdServer(module_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def daemon(module_path: Path, provider: OpenIdServer, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose people sign in there."""
    made = Daemon(module_path / "h", config=provider.config(), local=LOCAL + model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def browser(provider: OpenIdServer, daemon: Daemon) -> Iterator[Callable[[], Browser]]:
    """Yield who opens browsers, each with cookies of its own."""
    made: list[Browser] = []

    def open_one() -> Browser:
        made.append(Browser(provider, daemon))
        return made[-1]

    yield open_one
    for one in made:
        one.__exit__()


@pytest.fixture
def person(browser: Callable[[], Browser]) -> Callable[[str], Browser]:
    """Return who lets people sign in, each in a browser of their own."""

    def sign_in(user: str) -> Browser:
        opened = browser()
        got = opened.sign_in(user)
        assert got.status_code == 200, got.text
        return opened

    return sign_in
