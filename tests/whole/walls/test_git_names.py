"""Git's configuration and all that it names: included files, hook folders, work trees, other tools.

A configuration may name files and folders anywhere. Whatever an agent can write of them is as
protected as the configuration itself, through every tool.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import Guest
from whole.harness.project import Project
from whole.harness.scripts import git, repository
from whole.walls.conftest import CAGE, TOOLS
from whole.walls.test_git_configuration import PLANTED, listed, reading
from whole.walls.test_protected_guests import WRITES
from whole.walls.test_protected_paths import HOOK, planting

Sh = Callable[[str], dict[str, Any]]
EVIL = "[alias]\n\tst = !touch ran\n[core]\n\tpager = touch ran\n\tfsmonitor = touch ran\n"
HELD = "until [ -e go ]; do sleep 0.02; done; rm go; "


def refuses(project: Project, path: str, text: str) -> None:
    """See that no file tool writes this."""
    for tool in ("file.write", "file.create"):
        error = project.fail(tool, path=path, content=text)
        assert error["code"] == "path_protected", (tool, path, error)


@pytest.mark.parametrize("how", ["file.write", "edit.text", "undo"])
def test_a_file_tool_s_harmless_write_leaves_the_guard_in_place(
    daemon: Daemon, project: Project, sh: Sh, commits: Callable[[], bool], how: str
) -> None:
    """The agent's second tool works on the file while its first one, a command, goes on."""
    config = project.root / ".git/config"
    text = config.read_text("utf-8")
    more = f'{text}[branch "x"]\n\tremote = origin\n'
    project.call("file.read", path=".git/config")
    if how == "undo":
        project.call("file.write", path=".git/config", content=more)
    attack = "for i in $(seq 150); do git config alias.st '!touch ran'; done; echo through"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sh, f"touch here; {HELD}{attack}; cat .git/config")
        wait_for((project.root / "here").exists, "the command runs")
        if how == "undo":
            daemon.post(f"/projects/{project.id}/undo", {})
        elif how == "edit.text":
            (name,) = [one for one in text.splitlines() if "name = t" in one]
            project.call("edit.text", path=".git/config", old_string=name, new_string="\tname = u")
        else:
            project.call("file.write", path=".git/config", content=more)
            project.call("file.write", path=".git/config", content=f"{more}\tmerge = x\n")
        written = config.read_text("utf-8")
        project.call("file.read", path=".git/config")
        refuses(project, ".git/config", f"{written}{EVIL}")
        with reading(config) as reader:
            project.write("go", "")
            result = running.result()
    assert result["exit_code"] == 0, result
    assert "through" in result["stdout"]
    assert reader.reads > 100
    assert not [one for one in reader.seen if PLANTED in one]
    # The command saw what the tool wrote, and both are there.
    assert {"undo": text, "edit.text": "name = u", "file.write": "merge = x"}[how] in written
    assert written.strip() in result["stdout"]
    assert not (project.root / ".git/config.lock").exists()
    assert not commits()


def test_a_file_tool_waits_for_nobody_who_has_the_configuration_locked(
    project: Project, sh: Sh
) -> None:
    text = project.read(".git/config")
    project.call("file.read", path=".git/config")
    project.write(".git/config.lock", "")
    error = project.fail("file.write", path=".git/config", content=f"{text}# more\n")
    assert error["code"] == "file_busy", error
    assert project.read(".git/config") == text
    (project.root / ".git/config.lock").unlink()
    project.call("file.write", path=".git/config", content=f"{text}# more\n")
    assert project.read(".git/config") == f"{text}# more\n"


def test_files_that_the_configuration_names_and_that_are_not_there_yet(
    project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    """`config.worktree` and an included file: both are empty, and the operator's, at the start."""
    root = project.root
    git("config", "extensions.worktreeConfig", "true", cwd=root)
    git("config", "include.path", "mine.inc", cwd=root)
    files = [root / ".git/config.worktree", root / ".git/mine.inc"]
    for round_ in range(2):
        with reading(*files) as reader:
            result = sh(
                "for i in $(seq 60); do git config --worktree core.pager 'touch ran'; "
                "git config -f .git/mine.inc alias.st '!touch ran'; done; "
                f"git config --worktree user.email {round_}@b; "
                f"git config -f .git/mine.inc user.name n{round_}"
            )
        assert result["exit_code"] == 0, result
        assert not [text for text in reader.seen if PLANTED in text]
        assert {one["path"] for one in result["taken_back"]} == {
            ".git/config.worktree",
            ".git/mine.inc",
        }
        assert git("config", "user.email", cwd=root) == f"{round_}@b"
        assert git("config", "--includes", "user.name", cwd=root) == f"n{round_}"
    assert not commits()


def test_includes_of_includes_and_hook_folders_that_they_name(
    project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    root = project.root
    git("config", "extensions.worktreeConfig", "true", cwd=root)
    git("config", "--worktree", "include.path", "../one.inc", cwd=root)
    project.write("one.inc", "[include]\n\tpath = sub/two.inc\n")
    project.write("sub/two.inc", "[core]\n\thooksPath = my/hooks\n[user]\n\tname = two\n")
    for _ in range(2):
        result = sh(
            f"{planting('my/hooks/pre-commit')}; git config -f sub/two.inc core.pager 'touch ran'; "
            "git config -f one.inc alias.st '!touch ran'"
        )
        assert {one["path"] for one in result["taken_back"]} >= {"one.inc", "sub/two.inc"}, result
        assert not (root / "my/hooks/pre-commit").exists()
    for path in ("one.inc", "sub/two.inc"):
        project.call("file.read", path=path)
        refuses(project, path, f"{project.read(path)}{EVIL}")
    refuses(project, "my/hooks/pre-commit", HOOK)
    assert not commits()


@pytest.fixture
def linked(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project that is a linked work tree; its repository lies outside of it."""
    main, tree = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    hooks = {"a.txt": "one\n", ".gitignore": ".kaged/\nran\n", "own.inc": "[user]\n\tname = t\n"}
    repository(main, hooks)
    git("config", "core.hooksPath", ".githooks", cwd=main)
    git("config", "include.path", str(tree / "own.inc"), cwd=main)
    git("worktree", "add", "-q", str(tree), cwd=main)
    return daemon.load(Project(tree, cage=CAGE, tools=TOOLS))


def test_a_work_tree_whose_repository_lies_outside_obeys_that_repository_s_configuration(
    linked: Project,
) -> None:
    for _ in range(2):
        result = linked.call(
            "shell.bash",
            command=f"{planting('.githooks/pre-commit')}; "
            r"printf '[core]\n\tfsmonitor = touch ran\n[user]\n\temail = e@e\n' >> own.inc",
        )
        assert {one["path"] for one in result["taken_back"]} == {
            ".githooks/pre-commit",
            "own.inc",
        }, result
    refuses(linked, ".githooks/pre-commit", HOOK)
    linked.call("file.read", path="own.inc")
    refuses(linked, "own.inc", EVIL)
    linked.call("file.write", path="own.inc", content="[user]\n\tname = mine\n")
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=linked.root)
    assert not (linked.root / "ran").exists()


def test_every_work_tree_has_the_hook_folder_also_one_that_the_agent_makes(
    daemon: Daemon, project: Project, sh: Sh
) -> None:
    root = project.root
    project.write(".githooks/post-commit", "#!/bin/sh\ntrue\n")
    git("add", "-f", ".githooks", cwd=root)
    git("commit", "-q", "-m", "hooks", cwd=root)
    git("config", "core.hooksPath", ".githooks", cwd=root)
    git("worktree", "add", "-q", "old", cwd=root)
    made = sh(
        "git worktree add -q new && cd new && echo x > x && git add x && git commit -qm x && cd .. "
        f"&& {planting('old/.githooks/pre-commit')} && {planting('new/.githooks/pre-commit')}"
    )
    assert made["exit_code"] == 0, made
    assert {one["path"] for one in made["taken_back"]} == {
        "old/.githooks/pre-commit",
        "new/.githooks/pre-commit",
    }, made
    refuses(project, "new/.githooks/pre-commit", HOOK)
    for name in ("old", "new"):
        # What git checked out is the operator's, and stays.
        assert (root / name / ".githooks/post-commit").exists()
        git("commit", "-q", "--allow-empty", "-m", "mine", cwd=root / name)
        assert not (root / name / "ran").exists()
    assert sh("git worktree remove new && git branch -qD new")["exit_code"] == 0


def test_grants_beside_their_repository_count(daemon: Daemon, tmp_path: Path) -> None:
    """Two writable folders; the repository, which names things in both, is not writable itself."""
    root = tmp_path / "p"
    for folder in (root, root / "src", root / "team"):
        folder.mkdir()
    repository(root, {"a.txt": "one\n", ".gitignore": ".kaged/\nran\n"})
    (root / "team/team.inc").write_text("[user]\n\tname = team\n", encoding="utf-8")
    git("config", "include.path", "../team/team.inc", cwd=root)
    git("config", "core.hooksPath", "src/hooks.d", cwd=root)
    fs = [{"mode": "rw", "path": "./src"}, {"mode": "rw", "path": "./team"}]
    project = daemon.load(Project(root, cage={"fs": fs, "capabilities": ["shell"]}))
    for _ in range(2):
        result = project.call(
            "shell.bash",
            command="git config -f ../team/team.inc core.fsmonitor 'touch ran'; "
            f"{planting('hooks.d/pre-commit')}",
            cwd="src",
        )
        assert {one["path"] for one in result["taken_back"]} == {"team.inc", "hooks.d/pre-commit"}
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=root)
    assert not (root / "ran").exists()


def test_what_a_repository_names_in_another_folder_of_the_same_guest_counts(
    daemon: Daemon, tmp_path: Path
) -> None:
    root, other = tmp_path / "p", tmp_path / "shared"
    for folder in (root, other):
        folder.mkdir()
    repository(root)
    team = other / "team.inc"
    team.write_text("[user]\n\tname = team\n", encoding="utf-8")
    git("config", "include.path", str(team), cwd=root)
    git("config", "core.hooksPath", str(other / "hooks.d"), cwd=root)
    guest = Guest(
        daemon,
        tmp_path,
        WRITES,
        name="sharer",
        methods=["a.write"],
        capabilities=[f"write:fs:{root}", f"write:fs:{other}"],
    )
    assert guest.run()["state"] == "running"
    for number in range(2):
        text = f"[user]\n\tname = n{number}\n[core]\n\tfsmonitor = touch ran\n"
        guest.call("a.write", path=str(team), text=text)
        guest.call("a.write", path=str(other / "hooks.d/pre-commit"), text=HOOK)
        wait_for(lambda: "touch" not in team.read_text("utf-8"), "the command is gone")
        wait_for(lambda: not (other / "hooks.d/pre-commit").exists(), "the hook is gone")
        assert f"n{number}" in team.read_text("utf-8")
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=root)
    assert not list(tmp_path.rglob("ran"))
    daemon.post("/plugins/sharer/disable")


def test_a_project_below_its_repository_s_root_counts(daemon: Daemon, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "part").mkdir(parents=True)
    repository(top, {"a.txt": "one\n", ".gitignore": ".kaged/\nran\n"})
    (top / "part/x.inc").write_text("[user]\n\tname = t\n", encoding="utf-8")
    git("config", "core.hooksPath", "part/hooks.d", cwd=top)
    git("config", "include.path", "../part/x.inc", cwd=top)
    project = daemon.load(Project(top / "part", cage=CAGE, tools=TOOLS))
    result = project.call(
        "shell.bash",
        command=f"{planting('hooks.d/pre-commit')}; git config -f x.inc core.fsmonitor 'touch ran'",
    )
    assert {one["path"] for one in result["taken_back"]} == {"hooks.d/pre-commit", "x.inc"}
    refuses(project, "hooks.d/pre-commit", HOOK)
    project.call("file.read", path="x.inc")
    refuses(project, "x.inc", EVIL)
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=top)
    assert not (top / "ran").exists()


def test_git_s_settings_and_operations_go_on_beside_all_of_that(project: Project, sh: Sh) -> None:
    root = project.root
    git("config", "extensions.worktreeConfig", "true", cwd=root)
    git("config", "include.path", "mine.inc", cwd=root)
    git("config", "core.hooksPath", ".githooks", cwd=root)
    for command in (
        "echo b > b && git add b && git commit -qm b && git branch side",
        "git checkout -q -b work && echo c > c && git add c && git commit -qm c",
        "echo d >> a.txt && git stash -q && git stash pop -q && git commit -qam d",
        (
            "git checkout -q side && echo s > s && git add s && git commit -qm s && "
            "git checkout -q work && git rebase -q side"
        ),
        (
            "git worktree add -q tree && git -C tree config --worktree user.name w && cd tree && "
            "echo t > t && git add t && git commit -qm t"
        ),
        "git worktree remove tree && git branch -qD tree",
        "git config --worktree core.sparseCheckout false && git config user.name agent",
    ):
        result = sh(f"set -e; {command}; git -C {root} status --porcelain")
        assert result["exit_code"] == 0, (command, result)
        assert result["stdout"].strip() in {"", "?? tree/"}, (command, result)
        assert not result.get("taken_back"), (command, result)
    git("fsck", "--no-dangling", cwd=root)
    assert "user.name=agent" in listed(root)
