"""What a guest that may only read could still reach: named pipes, and the kernel's own files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.guests import Guest
from whole.harness.project import Project

CAGE = {
    "fs": [{"mode": "rw", "path": "./"}, {"mode": "ro", "path": "./docs"}],
    "capabilities": ["shell"],
}
OPENS = """
from kit import *
import os
greet()
def on(message):
    try:
        fd = os.open(message["params"]["path"], message["params"]["flags"] | os.O_NONBLOCK)
        answer(message, "opened")
        os.close(fd)
    except OSError as error:
        answer(message, error.strerror)
serve(on)
"""


class Reader:
    """A program of the operator's that reads from a named pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def close(self) -> bytes:
        got = os.read(self._fd, 100)
        os.close(self._fd)
        return got


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project with a folder that its agent may only read."""
    made = Project(tmp_path / "p", cage=CAGE)
    made.write("docs/deep/page.md", "page\n")
    return daemon.load(made)


def test_an_agent_cannot_write_to_a_pipe_where_it_may_only_read(project: Project) -> None:
    first = Reader(project.root / "docs" / "deep" / "first")
    ran = project.call("shell.bash", command="echo out > docs/deep/first")
    assert (ran["exit_code"] != 0, "Permission denied" in str(ran)) == (True, True), ran
    second = Reader(project.root / "docs" / "second")
    for name in ("deep/first", "second"):
        ran = project.call("shell.bash", command=f"echo out > docs/{name}")
        assert ran["exit_code"] != 0, (name, ran)
    assert "page" in str(project.call("shell.bash", command="cat docs/deep/page.md"))
    assert (first.close(), second.close()) == (b"", b"")


def test_an_agents_own_pipes_work_where_it_may_write(project: Project) -> None:
    made = project.call("shell.bash", command="mkfifo pipe && (echo in > pipe & cat pipe)")
    assert "in" in str(made), made
    ran = project.call("shell.bash", command="(echo again > pipe & cat pipe) && rm pipe")
    assert (ran["exit_code"], "again" in str(ran)) == (0, True), ran
    assert not (project.root / "pipe").exists()


def test_a_plugin_that_may_only_read_cannot_open_a_pipe_there(
    daemon: Daemon, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("x", encoding="utf-8")
    reader = Reader(shared / "pipe")
    guest = Guest(
        daemon,
        tmp_path,
        OPENS,
        name="opener",
        methods=["a.open"],
        capabilities=[f"read:fs:{shared}"],
    )
    assert guest.run()["state"] == "running"
    denied = "Permission denied"
    for path, flags, said in (
        (shared / "pipe", os.O_WRONLY, denied),
        (shared / "pipe", os.O_RDONLY, denied),
        (shared / "file", os.O_RDONLY, "opened"),
        (Path("/proc/keys"), os.O_RDONLY, denied),
        (Path("/proc/key-users"), os.O_RDONLY, denied),
        (Path("/proc/cpuinfo"), os.O_RDONLY, "opened"),
    ):
        if path.exists():
            assert guest.call("a.open", path=str(path), flags=flags) == said, (path, flags)
    assert reader.close() == b""
    daemon.post("/plugins/opener/disable")
