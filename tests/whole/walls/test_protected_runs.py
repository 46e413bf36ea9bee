"""Protected paths over the life of runs and daemons: summaries, several cages, a killed daemon."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from whole.harness.daemon import Daemon, Refused, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import git, repository
from whole.walls.conftest import CAGE, repository_project
from whole.walls.test_protected_paths import planting, taken


def test_a_run_s_summary_names_what_to_review_and_what_was_taken_back(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    turns = (
        call("file.create", path="Makefile", content="all:\n"),
        call("shell.bash", command=f"{planting('AGENTS.md')}; {planting('.envrc')}"),
        say("done"),
    )
    model.play("pelican-builds", *turns)
    shown = daemon.cli("run", "pelican-builds", cwd=project.root)
    (line,) = [one for one in shown.err.splitlines() if "to be looked at" in one]
    assert "Makefile" in line
    assert "AGENTS.md" in line
    (line,) = [one for one in shown.err.splitlines() if "taken back" in one]
    assert ".envrc" in line
    # The second run names its own files alone.
    second = call("file.create", path="sub/Makefile", content="all:\n")
    model.play("pelican-again", second, say("done"))
    lines = daemon.cli("run", "--json", "pelican-again", cwd=project.root).out.splitlines()
    (end,) = [one for one in map(json.loads, lines) if one["event"] == "run.ended"]
    assert end["to_review"] == ["sub/Makefile"]
    assert "taken_back" not in end


def test_what_one_cage_plants_is_no_other_s_beginning(
    daemon: Daemon, project: Project, sh: Callable[[str], dict[str, object]]
) -> None:
    """A second command that begins while the first one's plant lies there does not adopt it."""
    going = threading.Thread(
        target=lambda: sh(
            f"{planting('.envrc')}; touch planted; while [ ! -e go ]; do sleep 0.05; done"
        )
    )
    going.start()
    wait_for((project.root / "planted").exists, "the first one has planted")
    sh("true")
    assert not (project.root / ".envrc").exists()
    project.write("go", "")
    going.join()
    assert not (project.root / ".envrc").exists()
    assert taken(daemon, project.root) == [".envrc"]


def test_what_a_running_command_plants_is_gone_long_before_its_end(
    daemon: Daemon, project: Project
) -> None:
    """Twenty plants, each gone while the command looks on; one a second would take too long."""
    places = (".envrc", "sub/.vscode/tasks.json", "inner/.git/hooks/pre-commit", "a/b/.npmrc")
    rounds = "\n".join(
        f"mkdir -p $(dirname {one}); echo evil > {one}; while [ -e {one} ]; do sleep 0.01; done"
        for one in places
    )
    command = f"git init -q inner\nfor i in 1 2 3 4 5; do\n{rounds}\ndone; touch through"
    for _ in range(2):
        result = project.call("shell.bash", command=command, timeout=15_000)
        assert (result["exit_code"], result["timed_out"]) == (0, False), result
        assert {one["path"] for one in result["taken_back"]} >= {".envrc", "a/b/.npmrc"}
        (project.root / "through").unlink()
    assert set(taken(daemon, project.root)) == set(places)


def test_a_file_that_is_written_through_a_mapping_is_put_back(project: Project) -> None:
    """Such a write may leave no trace in the file's time stamps."""
    project.write(".envrc", "export A=1\n")
    code = (
        "import mmap, time; f = open('.envrc', 'r+b'); m = mmap.mmap(f.fileno(), 0); "
        "m[0:1] = b'e'; time.sleep(1.5); m[0:10] = b'touch ran;'; m.close()"
    )
    for _ in range(2):
        result = project.call("shell.bash", command=f'python3 -c "{code}"')
        assert result["exit_code"] == 0, result
        assert [one["path"] for one in result["taken_back"]] == [".envrc"]
        assert project.read(".envrc") == "export A=1\n"


def test_undo_of_several_protected_paths_changes_none_of_them(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    """What was written while it was allowed is not taken back, or put back, once it is not."""
    root = tmp_path / "p"
    paths = (".husky/pre-commit", ".envrc", "sub/.vscode/tasks.json")
    entries = ", ".join(f'{{ project = "{root}", path = "{one}" }}' for one in paths)
    bind = '[daemon]\nbind = "127.0.0.1:0"\n'
    daemon = own(config=f"[tools]\nallow_protected = [{entries}]\n")
    daemon.start()
    project = repository_project(daemon, root)
    for path in paths:
        project.call("file.create", path=path, content="first\n")
        project.call("file.write", path=path, content="second\n")
    project.call("file.create", path="plain.txt", content="plain\n")
    daemon.stop()
    daemon.write("config.toml", bind)
    daemon.start()
    daemon.load(project)
    daemon.post(f"/projects/{project.id}/undo", {})  # of plain.txt
    assert not (root / "plain.txt").exists()
    for _ in range(2):
        error = daemon.error("POST", f"/projects/{project.id}/undo", {})
        assert error["code"] == "path_protected", error
    assert [project.read(path) for path in paths] == ["second\n"] * len(paths)


def test_the_next_daemon_puts_in_order_what_a_killed_one_left(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = repository_project(daemon, tmp_path / "p")
    project.write(".npmrc", "mine\n")
    places = [f"d{number}/.envrc" for number in range(20)]
    plants = "; ".join(f"mkdir -p {Path(one).parent}; echo x > {one}" for one in places)
    command = f"while :; do {plants}; echo evil > .npmrc; touch going; done"

    def run() -> None:
        try:
            project.call("shell.bash", command=command)
        except (Refused, httpx.HTTPError):
            return  # the daemon is gone, as it should be

    going = threading.Thread(target=run)
    going.start()
    wait_for((project.root / "going").exists, "the command runs")
    daemon.kill()
    going.join()
    planted = [one for one in places if (project.root / one).exists()]
    assert planted, "the kill came in the one moment without any of them"
    daemon.start()
    daemon.load(project)  # which waits until the cages stand
    assert not [one for one in places if (project.root / one).exists()]
    assert project.read(".npmrc") == "mine\n"
    rows = [one["data"] for one in daemon.audit("protected_path.taken_back")]
    last = [one for one in rows if one["who"] == "a cage of an earlier daemon"]
    assert {one["path"] for one in last} >= {f"{project.root}/{one}" for one in planted}
    # Once is enough: what the operator writes now is the operator's.
    project.write(".npmrc", "mine again\n")
    daemon.restart()
    daemon.load(project)
    assert project.read(".npmrc") == "mine again\n"
    git("fsck", cwd=project.root)


def test_undo_and_git_bring_back_what_the_operator_had_and_nothing_an_agent_wrote(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    """One record for both ways back in time, and it outlives the daemon."""
    plain = '[daemon]\nbind = "127.0.0.1:0"\n'
    root = tmp_path / "p"
    root.mkdir()
    mine, newer = "export A=1\n", "export A=2\n"
    repository(root, {".envrc": mine, "a.txt": "one\n"})
    daemon = own(config=plain)
    daemon.start()
    project = Project(root, cage=CAGE)
    daemon.load(project)
    project.call("shell.bash", command="true")  # the operator's is on record from here on
    # An agent may write it for a while, and does so twice.
    daemon.stop()
    allowed = f'[tools]\nallow_protected = [{{ project = "{root}", path = ".envrc" }}]\n'
    daemon.write("config.toml", f"{plain}{allowed}")
    daemon.start()
    daemon.load(project)
    for text in ("export A=agent\n", "export A=again\n"):
        project.call("file.read", path=".envrc")
        project.call("file.write", path=".envrc", content=text)
    daemon.stop()
    daemon.write("config.toml", plain)
    daemon.start()
    daemon.load(project)
    error = daemon.error("POST", f"/projects/{project.id}/undo", {})
    assert error["code"] == "path_protected", error
    assert project.read(".envrc") == "export A=again\n"
    daemon.post(f"/projects/{project.id}/undo", {"count": 2})
    assert project.read(".envrc") == mine
    # Git in a cage: the operator's older text comes back, the agent's does not.
    project.write(".envrc", newer)
    git("commit", "-q", "-am", "newer", cwd=root)
    project.call("shell.bash", command="true")
    daemon.stop()
    daemon.start()
    daemon.load(project)
    result = project.call("shell.bash", command="git restore --source HEAD~1 -- .envrc; cat a.txt")
    assert not result.get("taken_back"), result
    assert project.read(".envrc") == mine
    result = project.call("shell.bash", command="echo export A=agent > .envrc; cat a.txt")
    assert [one["path"] for one in result["taken_back"]] == [".envrc"]
    assert project.read(".envrc") == mine
    # Between a stash and its way back the work tree has the newest text, the operator's too: which
    # of the two comes back depends on whether somebody looked in that moment.
    result = project.call(
        "shell.bash",
        command="echo export A=agent > .envrc; git stash -q; git stash pop -q; cat a.txt",
    )
    assert [one["path"] for one in result["taken_back"]] == [".envrc"]
    assert project.read(".envrc") in {mine, newer}
