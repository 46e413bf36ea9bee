"""A daemon with the credential `github`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.keys import CONFIG, LOCAL, VALUE, Keys
from whole.harness.model import ModelServer


@pytest.fixture
def keys(own: Callable[..., Daemon], model: ModelServer, tmp_path: Path) -> Keys:
    """Return a running daemon with the credential `github`."""
    local = model.local_toml()
    daemon = own(config=CONFIG, local=local + LOCAL, env={"GITHUB_VALUE": VALUE})
    daemon.start()
    return Keys(daemon, local, tmp_path)
