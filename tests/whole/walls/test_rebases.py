"""A rebase that an agent leaves behind runs no command of the agent's when it is continued."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import Daemon, Refused, wait_for
from whole.harness.project import Project
from whole.harness.scripts import git
from whole.walls.conftest import repository_project
from whole.walls.test_protected_paths import taken

Sh = Callable[[str], dict[str, Any]]
STEPS = r"break\nexec touch ran\n \tx touch ran\npick HEAD\n#exec no\nexec\ttouch ran"
TODO = ".git/rebase-merge/git-rebase-todo"


def stops(steps: str, at: str = ".") -> str:
    """Return the command that begins a rebase with these steps, the first of which stops it."""
    return f"cd {at} && GIT_SEQUENCE_EDITOR=\"printf '{steps}' >\" git rebase -i --root"


def continued(at: Path) -> subprocess.CompletedProcess[str]:
    """Return what came of the operator's `git rebase --continue`."""
    return subprocess.run(
        ["git", "-c", "core.editor=true", "rebase", "--continue"],
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
    )


def begin_as_operator(root: Path) -> None:
    """Begin a rebase of the operator's own, with a command in it."""
    steps = "break\\nexec touch mine\\n"
    subprocess.run(
        ["git", "-c", f"sequence.editor=printf '{steps}' >", "rebase", "-i", "--root"],
        cwd=root,
        check=True,
        capture_output=True,
    )


def test_commands_are_taken_out_of_a_rebase_that_is_left_behind(
    daemon: Daemon, project: Project, sh: Sh
) -> None:
    for _ in range(2):
        done = sh(stops(STEPS))
        assert done["exit_code"] == 0, done
        assert [one["path"] for one in done["taken_back"]] == [TODO], done
        left = (project.root / TODO).read_text(encoding="utf-8")
        assert "pick" in left
        assert "touch" not in left
        assert not (project.root / "ran").exists()
        assert continued(project.root).returncode == 0
        assert not (project.root / "ran").exists()
        assert not (project.root / ".git/rebase-merge").exists()
    assert taken(daemon, project.root) == [TODO] * 2


def test_a_rebase_that_is_made_by_hand_and_links_in_its_place_run_nothing(
    daemon: Daemon, project: Project, sh: Sh
) -> None:
    begin = stops("break")
    assert not sh(begin).get("taken_back")
    made = (
        "cd .git/rebase-merge && rm git-rebase-todo && printf 'x touch ran\\n' > ../steps && "
        "ln -s ../steps git-rebase-todo"
    )
    done = sh(made)
    assert [one["path"] for one in done["taken_back"]] == [TODO], done
    continued(project.root)
    assert not (project.root / "ran").exists()
    git("rebase", "--quit", cwd=project.root)

    done = sh(
        f"{begin}; printf 'x touch ran\\n' > {TODO}; mv .git/rebase-merge moved; "
        "ln -s ../moved .git/rebase-merge"
    )
    assert [one["path"] for one in done["taken_back"]] == [TODO], done
    assert continued(project.root).returncode != 0
    assert not (project.root / "ran").exists()


STRATEGY = ".git/rebase-merge/strategy"
OPTIONS = ".git/sequencer/opts"
PROGRAM = "mkdir git-merge-..; printf '#!/bin/sh\\ntouch ran\\n' > evil; chmod 755 evil"


def test_a_merge_strategy_that_is_a_program_of_the_work_tree_is_taken_out(
    project: Project, sh: Sh
) -> None:
    """Git runs `git-merge-` and the strategy's name: a path, if that has a slash."""
    sides = (
        f"{PROGRAM}; git checkout -q -b side; echo b > b; git add b; git commit -q -m b; "
        "git checkout -q -; echo c > c; git add c; git commit -q -m c"
    )
    begin = "GIT_SEQUENCE_EDITOR=\"sed -i '1i break'\" git rebase -i HEAD side"
    done = sh(f"{sides}; {begin}; echo ../../evil > {STRATEGY}")
    assert [one["path"] for one in done["taken_back"]] == [STRATEGY], done
    assert continued(project.root).returncode == 0
    assert not (project.root / "ran").exists()
    assert (project.root / "b").exists()

    picks = (
        "git checkout -q HEAD~2; mkdir .git/sequencer; git rev-parse HEAD > .git/sequencer/head; "
        "cp .git/sequencer/head .git/sequencer/abort-safety; "
        "printf 'pick %s\\n' $(git rev-parse side~ side) > .git/sequencer/todo; "
        f"printf '[options]\\n\\tsignoff = true\\n\\tstrategy = ../../evil\\n' > {OPTIONS}"
    )
    done = sh(picks)
    assert [one["path"] for one in done["taken_back"]] == [OPTIONS], done
    assert "signoff" in project.read(OPTIONS)
    subprocess.run(["git", "cherry-pick", "--continue"], cwd=project.root, check=True)
    assert not (project.root / "ran").exists()
    assert (project.root / "b").exists()


def test_a_linked_work_tree_has_rebases_of_its_own(
    daemon: Daemon, project: Project, sh: Sh
) -> None:
    done = sh("git worktree add -q -b side w && " + stops(STEPS, "w"))
    todo = ".git/worktrees/w/rebase-merge/git-rebase-todo"
    assert [one["path"] for one in done["taken_back"]] == [todo], done
    assert continued(project.root / "w").returncode == 0
    assert not list(project.root.rglob("ran"))


def test_commands_of_the_operator_s_own_rebase_stay(
    daemon: Daemon, project: Project, sh: Sh
) -> None:
    begin_as_operator(project.root)
    done = sh(f"echo 'exec touch ran' >> {TODO}; git status")
    assert [one["path"] for one in done["taken_back"]] == [TODO], done
    assert continued(project.root).returncode == 0
    assert (project.root / "mine").exists()
    assert not (project.root / "ran").exists()


def test_a_rebase_runs_its_commands_inside_the_cage(project: Project, sh: Sh) -> None:
    done = sh("git rebase -q --root -x 'echo ran > seen' && cat seen && rm seen")
    assert (done["exit_code"], "ran" in done["stdout"]) == (0, True), done
    assert not done.get("taken_back"), done


@pytest.mark.parametrize("path", [TODO, OPTIONS, ".git/worktrees/w/rebase-merge/git-rebase-todo"])
def test_file_tools_write_no_steps(daemon: Daemon, project: Project, path: str) -> None:
    error = project.fail("file.write", path=path, content="exec touch ran\n")
    assert error["code"] == "path_protected", error
    assert not (project.root / path).exists()


def test_what_a_killed_daemon_left_in_a_rebase_is_taken_out_by_the_next(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = repository_project(daemon, tmp_path / "p")
    begin_as_operator(project.root)
    command = f"echo 'exec touch ran' >> {TODO}; touch going; sleep 600"

    def run() -> None:
        with contextlib.suppress(Refused, httpx.HTTPError):  # the daemon is gone, as it should be
            project.call("shell.bash", command=command)

    going = threading.Thread(target=run)
    going.start()
    wait_for((project.root / "going").exists, "the command runs")
    daemon.kill()
    going.join()
    assert "ran" in project.read(TODO)
    daemon.start()
    daemon.load(project)  # which waits until the cages stand
    assert taken(daemon, project.root) == [TODO]
    assert continued(project.root).returncode == 0
    assert (project.root / "mine").exists()
    assert not (project.root / "ran").exists()
