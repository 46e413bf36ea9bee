"""Git's configuration: what an agent writes there is looked at before anybody outside reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.project import Project
from whole.harness.scripts import git, repository
from whole.walls.conftest import CAGE

Sh = Callable[[str], dict[str, Any]]
ROUNDS = 200
PLANTED = b"touch ran"
MAX_BYTES = 1 << 20


class Reader:
    """Reads files outside the cage, again and again, and keeps every text that it saw."""

    def __init__(self, *files: Path) -> None:
        self.seen: set[bytes] = set()
        self.reads = 0
        self._files = files
        self._over = threading.Event()

    def read_on(self) -> None:
        while not self._over.is_set():
            for file in self._files:
                # One read, as git does it: between two the file may be published anew.
                with suppress(FileNotFoundError), file.open("rb", buffering=0) as opened:
                    self.seen.add(opened.read(MAX_BYTES) or b"")
                self.reads += 1

    def stop(self) -> None:
        self._over.set()


@contextmanager
def reading(*files: Path) -> Generator[Reader]:
    """Yield a reader that reads these files all the time."""
    reader = Reader(*files)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(reader.read_on)
        try:
            yield reader
        finally:
            reader.stop()
        work.result()


def listed(root: Path) -> str:
    """Return the settings of a repository as git outside the cage lists them."""
    return git("config", "--local", "--list", cwd=root)


@pytest.mark.parametrize(
    "way",
    [
        "git config alias.st '!touch ran'",
        "printf '[alias]\\n\\tst = !touch ran\\n' >> .git/config",
        "cp .git/config mine; git config -f mine core.pager 'touch ran'; cat mine > .git/config",
    ],
    ids=["git", "appended", "written over"],
)
def test_nobody_outside_ever_reads_a_command(
    daemon: Daemon, project: Project, sh: Sh, commits: Callable[[], bool], way: str
) -> None:
    config = project.root / ".git/config"
    step = f"{way} && git config branch.b$i.remote origin"
    with reading(config) as reader:
        result = sh(f"for i in $(seq {ROUNDS}); do {step}; done; rm -f mine")
    assert result["exit_code"] == 0, result
    assert reader.reads > ROUNDS
    assert not [text for text in reader.seen if PLANTED in text]
    # It was refused, not overlooked, and what git wrote beside it is all there.
    assert {one["path"] for one in result["taken_back"]} == {".git/config"}
    assert listed(project.root).count(".remote=origin") == ROUNDS
    assert any(b"b1" in text for text in reader.seen)
    assert not commits()
    # The second command begins with what was published.
    again = sh(f"cat .git/config; {way}; git config branch.b1.remote other")
    assert "touch ran" not in again["stdout"]
    assert "branch.b1.remote=other" in listed(project.root)
    assert PLANTED not in config.read_bytes()


def test_the_operator_s_nested_repositories_and_submodules_have_copies_too(
    daemon: Daemon, tmp_path: Path
) -> None:
    root = tmp_path / "p"
    project = Project(root, cage=CAGE)
    for folder in (root, root / "vendored", tmp_path / "lib"):
        folder.mkdir(exist_ok=True)
        repository(folder, {"a.txt": "one\n"})
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "--quiet", "add", str(tmp_path / "lib"), "lib", cwd=root)
    daemon.load(project)
    files = [root / "vendored/.git/config", root / ".git/modules/lib/config"]
    with reading(*files) as reader:
        result = project.call(
            "shell.bash",
            command="for i in $(seq 50); do for d in vendored lib; do git -C $d config "
            "core.fsmonitor 'touch ran'; git -C $d config branch.b$i.remote origin; done; done; "
            "echo x > vendored/.git/hooks/pre-commit",
        )
    assert not [text for text in reader.seen if PLANTED in text]
    assert "Read-only file system" in result["stdout"]
    assert {one["path"] for one in result["taken_back"]} == {
        "vendored/.git/config",
        ".git/modules/lib/config",
    }
    assert listed(root / "vendored").count(".remote=origin") == 50
    assert listed(root / "lib").count("branch.b") == 50
    # Whoever removes such a repository is stopped once, and then it is none any more.
    assert project.call("shell.bash", command="rm -rf vendored")["exit_code"] != 0
    assert project.call("shell.bash", command="rm -rf vendored")["exit_code"] == 0
    assert not (root / "vendored").exists()


def test_git_s_own_settings_are_published_while_the_command_runs(project: Project, sh: Sh) -> None:
    config = project.root / ".git/config"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            sh,
            "set -e; git init -q --bare /tmp/r.git; git remote add origin /tmp/r.git; "
            "git push -q -u origin HEAD:main; git checkout -q -b work --track origin/main; "
            "until [ -e seen ]; do sleep 0.02; done; rm seen; cat .git/config; git status -sb",
        )
        wait_for(lambda: 'branch "work"' in config.read_text("utf-8"), "it is published")
        # The operator's own change meanwhile stays, and the cage sees it.
        git("config", "user.email", "new@t", cwd=project.root)
        project.write("seen", "")
        result = running.result()
    assert result["exit_code"] == 0, result
    assert not result.get("taken_back"), result
    assert "work...origin/main" in result["stdout"]
    text = listed(project.root)
    assert "user.email=new@t" in text
    assert "email = new@t" in result["stdout"]
    assert "branch.work.merge=refs/heads/main" in text
    assert "remote.origin.url=/tmp/r.git" in text
    assert not (project.root / ".git/config.lock").exists()


def test_two_commands_at_once_lose_nothing_of_each_other(project: Project, sh: Sh) -> None:
    step = "until git config branch.%s$i.remote here 2>/dev/null; do sleep 0.01; done"
    with ThreadPoolExecutor(2) as pool:
        ways = [f"for i in $(seq 40); do {step % name}; done" for name in ("a", "b")]
        results = list(pool.map(sh, ways))
    assert [one["exit_code"] for one in results] == [0, 0], results
    assert listed(project.root).count(".remote=here") == 80


def test_neither_the_file_nor_its_repository_can_be_moved_away(
    project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    before = project.read(".git/config")
    for attempt in (
        "mv .git moved",
        "rm .git/config",
        "printf '[core]\\n\\tpager = touch ran\\n' > new && mv -f new .git/config",
        "ln -sf /etc/hostname .git/config",
        "mv .git/hooks .git/h",
    ):
        result = sh(attempt)
        assert result["exit_code"] != 0, attempt
        assert "busy" in result["stdout"], result
        assert project.read(".git/config") == before
    # A copy that is gone or is something else is made anew; git goes on.
    inside = "$(dirname $(readlink .git/config))"
    for attempt in ("rm", "rm $c; mkdir", "rm $c; ln -s /etc/passwd", "mv -T $(dirname $c) /tmp;"):
        result = sh(f"c={inside}/config; {attempt} $c; sleep 1.5; true")
        assert project.read(".git/config") == before, attempt
        assert sh("git config user.name agent; git commit -q --allow-empty -m x")["exit_code"] == 0
        git("config", "user.name", "t", cwd=project.root)
        before = project.read(".git/config")
    assert not commits()


def test_worktree_files_are_opened_when_they_were_looked_at(project: Project, sh: Sh) -> None:
    """Git reads `config.worktree` only where the configuration says so."""
    config = project.root / ".git/config"
    with reading(config) as reader:
        result = sh(
            "git config extensions.worktreeConfig true; git config user.name agent; "
            "git config --worktree core.pager 'touch ran'; git config --worktree user.email a@b; "
            "sleep 1.5"
        )
    assert [one["path"] for one in result["taken_back"]] == [".git/config.worktree"]
    opened = [text for text in reader.seen if b"worktreeConfig" in text]
    assert opened in ([], [config.read_bytes()]), opened  # at the end, in one step
    assert git("config", "user.email", cwd=project.root).strip() == "a@b"
    assert git("config", "user.name", cwd=project.root).strip() == "agent"
    with reading(project.root / ".git/config.worktree") as reader:
        again = sh("for i in $(seq 50); do git config --worktree core.pager 'touch ran'; done")
    assert [one["path"] for one in again["taken_back"]] == [".git/config.worktree"]
    assert not [text for text in reader.seen if PLANTED in text]


def test_a_read_only_configuration_stays_so(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    repository(root, {"a.txt": "one\n"})
    for path in ("./.git", "./.git/config"):
        fs = [{"mode": "rw", "path": "./"}, {"mode": "ro", "path": path}]
        project = Project(root, cage={"fs": fs, "capabilities": ["shell"]})
        daemon.load(project)
        before = project.read(".git/config")
        result = project.call("shell.bash", command="git config branch.b.remote origin")
        assert result["exit_code"] != 0, (path, result)
        assert project.read(".git/config") == before
