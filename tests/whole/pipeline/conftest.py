"""A daemon with a pipeline file for the tests of a module, and a project to make calls in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.policies import PolicySite
from whole.harness.project import Project


@pytest.fixture(scope="module")
def site(module_path: Path) -> PolicySite:
    """Return the place of the module's pipeline file; its daemon is the module's."""
    return PolicySite(module_path / "policies")


@pytest.fixture(scope="module")
def settings() -> str:
    """Return what a module adds to `config.toml`; modules override it."""
    return ""


@pytest.fixture(scope="module")
def daemon(
    module_path: Path, model: ModelServer, site: PolicySite, settings: str
) -> Iterator[Daemon]:
    """Yield the module's daemon, whose `config.toml` names the pipeline file."""
    config = site.config_toml() + settings
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    site.daemon = made
    wait_for(site.loads)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(daemon: Daemon, module_path: Path) -> Project:
    """Return a loaded project to make calls in; its agent has a subagent `reader`."""
    reader = {
        "model": "default",
        "system_prompt": "You read.",
        "cage": {"fs": [{"mode": "ro", "path": "."}]},
        "tools": {"file.*": {"enabled": True}},
    }
    made = daemon.load(Project(module_path / "work", subagents={"reader": reader}))
    made.write("a.txt", "one\n")
    return made


@pytest.fixture(autouse=True)
def without_labels(request: pytest.FixtureRequest) -> None:
    """Let the direct calls of a test begin in a session of their own: labels stay with sessions."""
    if "shared" in request.fixturenames and "passed" not in request.fixturenames:
        request.getfixturevalue("shared").reload()
