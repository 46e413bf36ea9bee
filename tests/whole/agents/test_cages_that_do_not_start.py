"""A cage that cannot be built starts nothing, and its code is on record; what is let out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.project import Project

BWRAP = str(shutil.which("bwrap"))
FAILING = f"""#!/bin/sh
case "$1" in --version|--help) exec {BWRAP} "$1";; esac
echo "bwrap: no room in here" >&2
exit 1
"""
DYING = f"""#!{sys.executable}
import os, signal, sys
if sys.argv[1] in ("--version", "--help"):
    os.execv("{BWRAP}", ["{BWRAP}", sys.argv[1]])
with os.fdopen(int(sys.argv[2]), "rb") as options:
    words = options.read().split(bytes(1))
first = os.fork()
if first == 0:
    os._exit(1)
os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
print("bwrap: no room in here", file=sys.stderr, flush=True)
os.write(int(words[words.index(b"--info-fd") + 1]), b'{{"child-pid": %d}}' % first)
signal.pause()
"""
OLD = """#!/bin/sh
echo bubblewrap 0.1.0
"""


def caged(project: Project, *mounts: str, **more: Any) -> Project:
    """Write a cage for the agent, with a shell and these mounts (`rw:src`); returns the project."""
    pairs = [one.split(":", 1) for one in mounts]
    fs = [{"mode": mode, "path": path} for mode, path in pairs]
    project.describe(cage={"fs": fs, "capabilities": ["shell"], **more})
    project.reload()
    return project


def refused(daemon: Daemon, what: str) -> list[str]:
    """Return the codes of the cages that were refused to somebody, oldest first."""
    rows = [one["data"] for one in daemon.audit("cage.refused")]
    return [one["code"] for one in rows if what in one["what"]]


def codes_of_a_command(project: Project) -> list[str]:
    """Run a command twice that must not run; returns the codes on record."""
    told = [project.fail("shell.bash", command="touch ran") for _ in range(2)]
    assert [one["code"] for one in told] == ["shell_spawn_failed"] * 2
    assert not (project.root / "ran").exists()
    codes = [one["data"]["code"] for one in project.daemon.audit("cage.refused")][-2:]
    assert [one["data"]["detail"]["code"] for one in told] == codes
    return codes


def test_a_grant_of_something_that_is_no_file_starts_nothing(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    caged(project, "rw:.", "ro:pipe")
    assert codes_of_a_command(project) == ["cage_grant_refused"] * 2
    caged(project, "rw:.")
    project.call("shell.bash", command="touch ran")
    assert (project.root / "ran").exists()


@pytest.fixture(scope="module")
def listening() -> Iterator[int]:
    """Yield the port of a server of this machine that says hello to whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    line, _ = server.accept()
                    with line:
                        line.sendall(b"hello\n")
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_what_a_cage_connects_to_and_may_not_is_on_record(
    daemon: Daemon, project: Project, listening: int
) -> None:
    caged(project, "rw:.", net={"allow": [f"localhost:{listening}"]})
    reads = "bash -c 'exec 3<>/dev/tcp/{}; head -n 1 <&3'"
    assert (
        project.call("shell.bash", command=reads.format(f"localhost/{listening}"))["stdout"]
        == "hello\n"
    )
    assert project.call("shell.bash", command=reads.format("192.0.2.1/9"))["exit_code"] != 0

    def rows(event: str, port: int) -> list[dict[str, Any]]:
        found = [one["data"] for one in daemon.audit(event)]
        return [one for one in found if one["port"] == port]

    (let,) = wait_for(lambda: rows("cage.net.connected", listening), "the connection")
    assert let["bytes_down"] == len("hello\n")
    wait_for(lambda: rows("cage.net.denied", 9), "the denial")
    ended = [one["data"] for one in daemon.audit("cage.exited")]
    assert let["cage_id"] in {one["cage_id"] for one in ended}
    assert rows("cage.net.connected", 9) == []


@pytest.fixture(scope="module")
def troubled(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose servers cannot be started, each for another reason."""
    broken = module_path / "broken-server"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    ports = [f"localhost:{port}" for port in range(20_000, 20_600)]
    made = Daemon(
        module_path / "h",
        config=(
            '[mcp.servers.option]\ncommand = ["-x"]\n'
            '[mcp.servers.missing]\ncommand = ["/nonexistent/program"]\n'
            '[mcp.servers.covers]\ncommand = ["broken-server"]\n'
            'cage = { fs = [{ mode = "ro", path = "/usr" }] }\n'
            f"[mcp.servers.many]\ncommand = {json.dumps([sys.executable])}\n"
            f"cage = {{ net = {json.dumps(ports)} }}\n"
            f'[lsp.servers.python]\ncommand = ["{broken}"]\n'
        ),
        local=model.local_toml(),
        env={"PATH": f"{module_path}:{os.environ['PATH']}"},
    )
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("server", "code"),
    [
        ("option", "cage_unsafe_argument"),
        ("missing", "cage_program_missing"),
        ("covers", "cage_policy_conflict"),
        ("many", "net_plan_too_large"),
    ],
)
def test_a_server_whose_cage_cannot_be_built_is_not_started(
    troubled: Daemon, server: str, code: str
) -> None:
    found = wait_for(lambda: refused(troubled, server), f"the refusal of {server}")
    assert set(found) == {code}
    assert [one for one in troubled.audit("cage.started") if server in one["data"]["what"]] == []


def test_a_program_that_is_none_is_not_started_without_a_cage_either(
    troubled: Daemon, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("a.py", "x = 1\n")
    troubled.load(project)
    hover = {"action": "hover", "path": "a.py", "line": 1, "character": 0}
    assert project.fail("code.lsp", **hover)["code"] == "lsp_server_unavailable"
    assert "spawn_failed" in refused(troubled, "language server")


@pytest.mark.parametrize(
    ("program", "code"),
    [(FAILING, "cage_start_failed"), (DYING, "cage_start_failed"), (OLD, "cage_unavailable")],
    ids=["gives up", "dies during setup", "too old"],
)
def test_without_a_sandbox_tool_that_works_nothing_runs(
    own: Callable[..., Daemon], tmp_path: Path, program: str, code: str
) -> None:
    tool = tmp_path / "bwrap"
    tool.write_text(program, encoding="utf-8")
    tool.chmod(0o755)
    daemon = own(config=f'[sandbox]\nbwrap = "{tool}"\n')
    daemon.start()
    project = Project(tmp_path / "p")
    daemon.load(project)
    caged(project, "rw:.")
    assert codes_of_a_command(project) == [code] * 2
    if code == "cage_start_failed":
        assert "no room in here" in str(project.fail("shell.bash", command="true"))
    assert daemon.stop() in {0, -signal.SIGTERM}
