"""Language servers hear of what people and programs do to a project's files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.code import PlannedServer
from whole.harness.project import Project

CREATED, CHANGED, DELETED = 1, 2, 3
MANY_FOLDERS = 8200  # more than are watched by the kernel
MANY_FILES = 5001  # more changes than are kept in mind


@pytest.fixture
def server(project: Project) -> PlannedServer:
    """Return a planned server with a file that it was asked about."""
    server = PlannedServer(project)
    server.answer("textDocument/hover", {"result": None})
    project.write("a.py", "x = 1\n")
    return server


def told(server: PlannedServer) -> dict[str, int]:
    """Ask, and return all that the server was told of changed files so far."""
    server.ask("hover", path="./a.py", line=1, character=0)
    root = f"{server.project.root.as_uri()}/"
    return {
        one["uri"].removeprefix(root): one["type"]
        for message in server.received("workspace/didChangeWatchedFiles")
        for one in message["params"]["changes"]
    }


def renewed(project: Project, path: str) -> None:
    """Change a file past the tools."""
    project.write(path, f"y = {time.monotonic_ns()}\n")


@whole("AT-BEY-07")
def test_changes_past_the_tools_are_told_before_the_next_question(server: PlannedServer) -> None:
    project = server.project
    project.write(".gitignore", "out/\n")
    project.write("out/generated.py", "x = 1\n")
    project.write("old.py", "x = 1\n")
    assert told(server) == {}
    project.call("shell.bash", command="echo 'z = 1' > new.py; rm old.py; mkdir -p p/q")
    renewed(project, "p/q/deep.py")
    renewed(project, "out/generated.py")
    project.call("file.create", path="./own.py", content="m = 1\n")  # told at once, as created
    assert told(server) == {
        "new.py": CREATED, "old.py": DELETED, "p/q/deep.py": CREATED,
        "out/generated.py": CHANGED, "own.py": CREATED,
    }  # fmt: skip
    renewed(project, "a.py")  # it is open: its text is sent
    told(server)
    (sent,) = server.received("textDocument/didChange")
    assert sent["params"]["contentChanges"] == [{"text": project.read("a.py")}]
    names = [one["uri"] for one in changes(server)]
    assert len(names) == len(set(names)), "nothing is told twice"


def changes(server: PlannedServer) -> list[dict[str, Any]]:
    """Return each change that the server was told of."""
    messages = server.received("workspace/didChangeWatchedFiles")
    return [one for message in messages for one in message["params"]["changes"]]


@whole("AT-BEY-07")
def test_folders_beyond_those_that_the_kernel_watches_are_compared(server: PlannedServer) -> None:
    project = server.project
    project.write(".gitignore", "a_out/\n")
    for number in range(MANY_FOLDERS):
        (project.root / "a_out" / f"{number:05}").mkdir(parents=True)
    project.write(f"a_out/{MANY_FOLDERS - 1:05}/last.py", "x = 1\n")
    project.write("src/m.py", "x = 1\n")
    assert told(server) == {}
    ours = watches_of(project.daemon.pid)
    assert 1000 < ours <= 8192
    renewed(project, f"a_out/{MANY_FOLDERS - 1:05}/last.py")
    renewed(project, "src/m.py")
    expected = {f"a_out/{MANY_FOLDERS - 1:05}/last.py": CHANGED, "src/m.py": CHANGED}
    assert told(server) == expected
    assert len(changes(server)) == 2
    told(server)
    assert len(changes(server)) == 2


def watches_of(pid: int) -> int:
    """Return how many folders the daemon has the kernel watch in its fullest watch."""
    counts = [0]
    for one in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = one.read_text("ascii")
        except OSError:
            continue
        counts.append(text.count("inotify wd:"))
    return max(counts)


@whole("AT-BEY-07")
def test_a_server_that_cannot_be_told_of_every_change_reads_all_anew(
    server: PlannedServer,
) -> None:
    project = server.project
    assert told(server) == {}
    project.call(
        "shell.bash",
        command=f"for n in $(seq {MANY_FILES}); do echo x > m$n.py; done",
        timeout=60_000,
    )
    assert told(server) == {}
    assert server.methods().count("initialize") == 2
    renewed(project, "m1.py")
    assert told(server) == {"m1.py": CHANGED}
    assert server.methods().count("initialize") == 2
