"""Protected paths and the guests that stay: plugins, MCP servers, scripts."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import Guest
from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command, git
from whole.walls.conftest import repository_project
from whole.walls.test_protected_paths import HOOK, RUN, refused, taken

GONE = "failed: No such file or directory"
SERVER = Path(__file__).parents[2] / "guests" / "writing_mcp_server.py"
WRITES = """
from kit import *
import os, pathlib
greet()
def on(message):
    params = message["params"]
    try:
        path = pathlib.Path(params["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(params["text"])
        path.chmod(0o755)
        answer(message, "written")
    except OSError as error:
        answer(message, f"failed: {error.strerror}")
serve(on)
"""


@pytest.fixture(scope="module")
def root(module_path: Path) -> Path:
    """Return where the project of the module's guests lies."""
    return module_path / "p"


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, root: Path) -> Iterator[Daemon]:
    """Yield a daemon with an outside server that can write the project."""
    root.mkdir()
    rules = f'{{ mode = "ro", path = "{SERVER}" }}, {{ mode = "rw", path = "{root}" }}'
    argv = json.dumps([sys.executable, str(SERVER)])
    config = f"[mcp.servers.outside]\ncommand = {argv}\ncage = {{ fs = [{rules}] }}\n"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(daemon: Daemon, root: Path) -> Project:
    """Return the project that guests of the module write to."""
    return repository_project(daemon, root)


@pytest.fixture
def scripts(daemon: Daemon, tmp_path: Path) -> Iterator[Scripts]:
    """Yield the scripts of a project of the test's own."""
    made = Scripts(daemon, repository_project(daemon, tmp_path / "lua-project"))
    yield made
    made.close()


def plants_everywhere(
    daemon: Daemon, project: Project, write: Callable[[str, str], str], second: str
) -> None:
    """See that a guest which stays up plants nothing, and that the operator's commit is clean."""
    root = project.root
    before = len(taken(daemon, root))
    # A guest that has more to do with its file may find it gone by then.
    said = {path: write(str(root / path), HOOK) for path in (*RUN, second)}
    written = [path for path, word in said.items() if word in {"written", GONE}]
    assert ".git/hooks/pre-commit" not in written
    assert {".envrc", ".vscode/tasks.json", second} <= set(written)
    wait_for(
        lambda: not [path for path in written if (root / path).exists()], "all of it is taken back"
    )
    rows = wait_for(lambda: taken(daemon, root)[before:], "it is on record")
    assert set(rows) <= set(written)
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=root, home=root)
    assert not (root / "ran").exists()
    assert write(str(root / "src" / "fine.txt"), "fine") == "written"
    assert project.read("src/fine.txt") == "fine"


def test_a_plugin_that_may_write_the_project_plants_nothing(
    daemon: Daemon, shared: Project, module_path: Path
) -> None:
    guest = Guest(
        daemon,
        module_path,
        WRITES,
        name="writer",
        methods=["a.write"],
        capabilities=[f"write:fs:{shared.root}"],
    )
    assert guest.run()["state"] == "running"

    def write(path: str, text: str) -> str:
        return str(guest.call("a.write", path=path, text=text))

    plants_everywhere(daemon, shared, write, "vendor/.envrc")
    config = shared.read(".git/config")
    write(f"{shared.root}/.git/config", f"{config}[core]\n\tfsmonitor = touch ran\n")
    wait_for(lambda: "fsmonitor" not in shared.read(".git/config"), "the key is gone")
    daemon.post("/plugins/writer/disable")


def test_folders_that_are_there_are_closed_to_a_plugin_and_open_to_the_operator(
    daemon: Daemon, module_path: Path, tmp_path: Path
) -> None:
    root = tmp_path / "p"
    project = repository_project(daemon, root)
    project.write(".vscode/settings.json", "{}\n")
    guest = Guest(
        daemon,
        module_path,
        WRITES,
        name="editor",
        methods=["a.write"],
        capabilities=[f"write:fs:{root}"],
    )
    assert guest.run()["state"] == "running"
    for number, name in enumerate(("tasks.json", "settings.json")):
        path = str(root / ".vscode" / name)
        assert guest.call("a.write", path=path, text="evil") == "failed: Read-only file system"
        # However busy the guest is, it cannot have written this.
        mine = project.write(f".vscode/mine{number}.json", "mine\n")
        guest.call("a.write", path=str(root / ".envrc"), text=HOOK)
        wait_for(lambda: not (root / ".envrc").exists(), "the guest's own is gone")
        assert mine.read_text("utf-8") == "mine\n"
    # Another folder in the place of the closed one is not closed.
    (root / ".vscode").rename(tmp_path / "away")
    guest.call("a.write", path=str(root / ".vscode/tasks.json"), text=HOOK)
    wait_for(lambda: not (root / ".vscode/tasks.json").exists(), "it is taken away")
    daemon.post("/plugins/editor/disable")


def test_a_worktree_whose_metadata_lies_outside_the_project_counts(
    daemon: Daemon, module_path: Path, tmp_path: Path
) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    git("init", "-q", "-b", "main", cwd=main)
    git("commit", "-q", "--allow-empty", "-m", "one", cwd=main)
    git("worktree", "add", "-q", str(tree), cwd=main)
    guest = Guest(
        daemon,
        module_path,
        WRITES,
        name="brancher",
        methods=["a.write"],
        capabilities=[f"write:fs:{tree}", f"write:fs:{main}/.git"],
    )
    assert guest.run()["state"] == "running"
    before = (main / ".git/config").read_text("utf-8")
    evil = f'{before}[alias]\n\tci = !touch ran\n[branch "tree"]\n\tremote = x\n'
    for name in ("pre-commit", "post-commit"):
        path = str(main / ".git/hooks" / name)
        assert guest.call("a.write", path=path, text=HOOK) == "failed: Read-only file system"
    for path in (main / ".git/config", main / ".git/worktrees/tree/config.worktree"):
        guest.call("a.write", path=str(path), text=evil)
        wait_for(lambda file=path: "touch" not in file.read_text("utf-8"), "the command is gone")
    assert "remote = x" in (main / ".git/config").read_text("utf-8")
    # A hook beside the work tree's own metadata, and one where a new `.git` file leads.
    guest.call("a.write", path=str(main / ".git/worktrees/tree/hooks/pre-commit"), text=HOOK)
    for part in ("objects/x", "refs/x", "hooks/pre-commit"):
        guest.call("a.write", path=str(tree / "mine.d" / part), text=HOOK)
    wait_for(lambda: not list(tmp_path.rglob("pre-commit")), "no hook is left")
    for folder in (main, tree):
        git("commit", "-q", "--allow-empty", "-m", "mine", cwd=folder)
    assert not list(tmp_path.rglob("ran"))
    daemon.post("/plugins/brancher/disable")


def test_an_outside_server_that_may_write_the_project_plants_nothing(
    daemon: Daemon, shared: Project
) -> None:
    def running() -> bool:
        found = daemon.get("/mcp/servers")["servers"]
        return any(one["name"] == "outside" and one["state"] == "running" for one in found)

    wait_for(running, "the server")
    (name,) = [
        one["name"]
        for one in shared.get("/tools?agent=primary")["tools"]
        if one["name"].startswith("outside") and "write" in one["name"]
    ]

    def write(path: str, text: str) -> str:
        answer = json.dumps(shared.call(name, path=path, text=text))
        return next((word for word in ("written", GONE) if word in answer), "")

    plants_everywhere(daemon, shared, write, "lib/.npmrc")


def test_what_the_operator_changes_while_a_server_rests_stays(
    daemon: Daemon, shared: Project
) -> None:
    """The server can write these paths, but has not run since they were last in order."""

    def known() -> str:
        files = daemon.home.rglob("taken-back/running/*.json")
        kept = [one for file in files for one in json.loads(file.read_text("utf-8"))["files"]]
        return " ".join(base64.b64decode(one["data"] or "").decode() for one in kept)

    def stays(path: str, text: str) -> bool:
        file = shared.write(path, text)

        def changed() -> bool:
            return not file.exists() or file.read_text("utf-8") != text

        wait_for(lambda: text in known() or changed(), "it is judged")
        return not changed()

    def back(path: str, text: str) -> bool:
        # Git's configuration keeps what is harmless in the server's text.
        return text == shared.read(path) or (
            path == ".git/config" and "touch" not in shared.read(path)
        )

    config = shared.read(".git/config")
    mine = {
        ".npmrc": "save-exact=true\n",
        "vendor/.vscode/tasks.json": "{}\n",
        ".git/config": f"{config}[alias]\n\tst = status\n",
    }
    for path, text in mine.items():
        # A server that ran within the last second may have done it: then once more.
        wait_for(partial(stays, path, text), "it stays")
    # From now on it is the operator's: what the server makes of it is put back to this.
    tool = next(
        one["name"]
        for one in shared.get("/tools?agent=primary")["tools"]
        if one["name"].startswith("outside") and "write" in one["name"]
    )
    for path, text in mine.items():
        shared.call(tool, path=str(shared.root / path), text="[alias]\n\tst = !touch ran\n")
        wait_for(partial(back, path, text), "it is put back")
    assert not (shared.root / "ran").exists()


def test_a_script_is_refused_and_its_programs_plant_nothing(
    daemon: Daemon, scripts: Scripts
) -> None:
    project = scripts.project
    scripts.grant(probe=["exec"])
    tries = "\n".join(
        f"out[#out + 1] = pcall(kage.fs.write, [==[{path}]==], 'x') and 'done' or 'refused'"
        for path in RUN
    )
    code = (
        "kage.request_capabilities({'exec'})\n"
        f"local out = {{}}\n{tries}\n"
        "kage.exec{cmd='sh', args={'-c', 'echo x > .envrc; echo x > fine.txt'}}\n"
        "return out"
    )
    shown = scripts.load(probe=command("eval", code))
    assert shown["probe"]["state"] == "running", shown
    found: Any = scripts.again()
    assert found == ["refused"] * len(RUN), found
    assert not [path for path in RUN if (project.root / path).exists()]
    assert {one["who"] for one in refused(daemon, project)} == {"kage.fs.write"}
    assert (project.root / "fine.txt").exists()
    assert taken(daemon, project.root) == [".envrc"]
