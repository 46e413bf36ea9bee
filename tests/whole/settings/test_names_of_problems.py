"""What is wrong in a file of the operator or a project has a code, at the key where it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project

CONFIG = """\
[daemon]
bind = "nowhere"
[auth]
trusted_proxies = ["10.0.0.300"]
[storage]
url = "mysql://somewhere/db"
[lua]
net = ["two words"]
[mcp.servers.mail]
command = ["/bin/true"]
cage = { fs = [{ mode = "ro", path = "not/absolute" }] }
"""


def codes(problems: list[dict[str, Any]]) -> dict[str, str]:
    """Return the code of each problem by the key that has it."""
    return {one["key_path"]: one["code"] for one in problems}


def test_a_daemon_says_at_once_all_that_is_wrong_in_its_files(own: Callable[..., Daemon]) -> None:
    daemon = own(config=CONFIG)
    error = daemon.start(expect=False)["error"]
    assert error["code"] == "config_invalid"
    assert codes(error["data"]["problems"]) == {
        "daemon.bind": "host_value_invalid",
        "auth.trusted_proxies[0]": "host_value_invalid",
        "storage.url": "storage_url_invalid",
        "lua.net[0]": "net_target_invalid",
        "mcp.servers.mail.cage.fs[0].path": "path_invalid",
    }
    assert "mysql" not in str(error), "a storage URL may hold a password"


def test_a_project_says_at_once_all_that_is_wrong_in_its_file(
    daemon: Daemon, tmp_path: Path
) -> None:
    project = Project(
        tmp_path / "p",
        cage={"fs": [{"mode": "ro", "path": "../out"}], "net": {"allow": ["two words"]}},
        plugins={
            "far": {"package": "@k/far", "source": "ftp://there/x"},
            "old": {"package": "@k/old", "version": "newest please"},
        },
    )
    error = daemon.error("POST", "/projects", {"root": str(project.root)})
    assert error["code"] == "config_invalid"
    assert codes(error["data"]["problems"]) == {
        "primary.cage.fs[0].path": "project_path_invalid",
        "primary.cage.net.allow[0]": "net_target_invalid",
        "primary.plugins.far.source": "plugin_source_invalid",
        "primary.plugins.old.version": "version_invalid",
    }


@pytest.mark.parametrize(
    ("breaks", "code"),
    [
        (lambda file: file.write_bytes(b"#" * 20_000_000), "file_too_large"),
        (lambda file: file.chmod(0o000), "file_unreadable"),
    ],
    ids=["file_too_large", "file_unreadable"],
)
def test_a_project_file_that_cannot_be_read_says_why_and_loads_once_it_can(
    daemon: Daemon, tmp_path: Path, breaks: Callable[[Path], Any], code: str
) -> None:
    project = Project(tmp_path / "p")
    file = project.root / ".kaged" / "project.yaml"
    breaks(file)
    error = daemon.error("POST", "/projects", {"root": str(project.root)})
    assert codes(error["data"]["problems"]) == {"": code}
    file.chmod(0o600)
    project.describe()
    daemon.load(project)
