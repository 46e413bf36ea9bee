"""Protected places of a tree: found at any depth, without walking the tree for every command."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fakes.file_clock import settle
from kaged.base import file_stamp
from kaged.cage.protected import configurations, copies, sweep
from kaged.cage.protected import tree as module
from kaged.cage.protected.files import open_folder
from kaged.cage.protected.findings import FINAL, Sweep
from kaged.cage.protected.memory import TreeMemory
from kaged.cage.protected.sweep import ProtectedState
from kaged.cage.protected.tree import ProtectedTree
from kaged.kernel.protected_paths import ProtectedRules, rules_for

FOLDERS, FILES = 2000, 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a tree with a repository."""
    made = tmp_path / "p"
    for part in ("objects", "refs", "hooks"):
        (made / ".git" / part).mkdir(parents=True)
    write(made / ".git/HEAD", "ref: refs/heads/main\n")
    write(made / ".git/config", "[core]\n\tbare = false\n")
    return made


def write(path: Path, text: str = "x") -> Path:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every folder for one whose time stamp is old enough to be believed."""
    monkeypatch.setattr(file_stamp, "time_ns", lambda: 2**62)


def state_of(
    root: Path,
    rules: ProtectedRules | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> ProtectedState:
    """Return the state of a tree as it lies there now."""
    tree = ProtectedTree(str(root), rules or ProtectedRules())
    state = ProtectedState(tree, root.parent / "kept", monotonic)
    state.rebase()
    return state


@pytest.mark.usefixtures("settled")
def test_a_large_tree_is_listed_once_and_then_only_asked_for_changes(root: Path) -> None:
    for number in range(FOLDERS):
        folder = root / f"d{number % 40}" / f"e{number}"
        folder.mkdir(parents=True)
        for name in range(FILES):
            (folder / f"f{name}.py").touch()
    tree = ProtectedTree(str(root), ProtectedRules())
    tree.look()
    first = tree.looked_at
    assert first > FOLDERS * FILES
    listed = tree.listed
    tree.look()
    # One question per folder, none per file, and no folder is listed again.
    assert tree.listed == listed
    assert tree.looked_at - first <= listed + 10
    write(root / "d3/e3/.envrc")
    found = tree.look()
    assert set(found.places) == {("d3", "e3", ".envrc")}
    assert tree.listed == listed + 1


def test_a_folder_that_changed_just_now_is_not_believed(root: Path) -> None:
    tree = ProtectedTree(str(root), ProtectedRules())
    tree.look()
    # Within one tick of the clock of the file system: the time stamp stays what it was.
    before = root.stat()
    write(root / ".npmrc")
    os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (".npmrc",) in tree.look().places


def test_repositories_are_known_by_what_git_would_take_for_one(root: Path) -> None:
    for place in ("bare", "deep/down/.git", ".git/modules/lib", "objects-only"):
        for part in ("objects", "refs"):
            (root / place / part).mkdir(parents=True)
    (root / "objects-only/refs").rmdir()
    write(root / ".git/worktrees/w/HEAD")
    write(root / ".git/worktrees/w/commondir", "../..")
    write(root / "tree/.git", "gitdir: ../.git/worktrees/w\n")
    found = ProtectedTree(str(root), ProtectedRules()).look()
    assert {"/".join(one) for one in found.git_dirs} == {
        ".git",
        "bare",
        "deep/down/.git",
        ".git/modules/lib",
        ".git/worktrees/w",
    }
    assert found.gitfiles == [("tree", ".git")]


def test_a_project_that_looks_like_a_repository_hides_nothing(root: Path) -> None:
    state = state_of(root)
    for name in ("objects", "refs"):
        (root / name).mkdir()
    for path in (".envrc", "objects/.envrc", "refs/.vscode/tasks.json", "hooks/pre-commit"):
        write(root / path)
    taken = {one.path for one in state.sweep(FINAL).taken_back}
    assert {".envrc", "objects/.envrc", "refs/.vscode/tasks.json", "hooks/pre-commit"} == taken
    assert not (root / "refs/.vscode").exists()


def test_folders_beyond_the_limit_hide_no_repository(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FOLDERS", 40)
    state = state_of(root)
    for number in range(100):
        (root / f"a{number}").mkdir()
    write(root / ".git/hooks/pre-commit")
    write(root / "zz/.git/HEAD")
    write(root / ".envrc")
    found = state.sweep(FINAL)
    assert not found.complete
    assert {".git/hooks/pre-commit", ".envrc"} <= {one.path for one in found.taken_back}


def test_contents_that_the_operator_had_come_and_go(root: Path) -> None:
    write(root / ".npmrc", "mine\n")
    state = state_of(root)
    (root / ".npmrc").unlink()
    gone = state.sweep(FINAL)
    assert [one.path for one in gone.changed] == [".npmrc"]
    assert not gone.taken_back
    write(root / ".npmrc", "mine\n")
    write(root / "tree/.npmrc", "mine\n")  # another work tree of the same repository
    assert not state.sweep(FINAL).taken_back
    write(root / "tree/.npmrc", "other\n")
    (one,) = state.sweep(FINAL).taken_back
    assert one.path == "tree/.npmrc"
    assert (root / "tree/.npmrc").read_text(encoding="utf-8") == "mine\n"


def test_a_mode_is_part_of_a_hook(root: Path) -> None:
    hook = write(root / ".git/hooks/pre-commit", "#!/bin/sh\n")
    hook.chmod(0o644)
    state = state_of(root)
    hook.chmod(0o755)
    (one,) = state.sweep(FINAL).taken_back
    assert one.path == ".git/hooks/pre-commit"
    assert hook.stat().st_mode & 0o777 == 0o644


def test_git_s_work_is_waited_for_but_not_for_ever(root: Path) -> None:
    seconds = count()
    state = state_of(root, monotonic=lambda: next(seconds))
    write(root / ".envrc")
    write(root / ".git/index.lock")
    write(root / ".git/config", "[alias]\n\tst = !x\n")
    write(root / ".git/config.lock")
    assert not state.sweep(Sweep()).taken_back
    assert {one.path for one in state.sweep(FINAL).taken_back} == {".envrc", ".git/config"}
    write(root / ".git/config", "[alias]\n\tst = !x\n")
    sweeps = 0
    while not state.sweep(Sweep()).taken_back:
        sweeps += 1
        assert sweeps < 100


def test_what_git_writes_while_its_configuration_is_cleaned_is_not_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(root)
    config = root / ".git/config"
    evil = "[alias]\n\tst = !x\n"
    newer = iter([f"{evil}[user]\n\tname = a\n", "[user]\n\tname = b\n"])
    swap = configurations.swap_content

    def slow(*args: Any) -> bytes | None:
        if (text := next(newer, None)) is not None:
            write(config, text)  # between the look and the swap
        return swap(*args)

    monkeypatch.setattr(configurations, "swap_content", slow)
    write(config, evil)
    assert [one.path for one in state.sweep(Sweep(quick=True)).taken_back] == [".git/config"]
    assert config.read_text(encoding="utf-8") == "[user]\n\tname = b\n"
    assert not [one.name for one in config.parent.iterdir() if one.name.startswith(".kaged")]


def test_what_a_guest_writes_behind_a_cleaned_configuration_is_not_the_operator_s(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(root)
    config = root / ".git/config"
    evil = "[alias]\n\tst = !x\n"
    swap = configurations.swap_content

    def raced(*args: Any) -> bytes | None:
        found = swap(*args)
        write(config, evil)  # right after the swap
        return found

    monkeypatch.setattr(configurations, "swap_content", raced)
    write(config, evil)
    assert state.sweep(Sweep()).taken_back
    monkeypatch.setattr(configurations, "swap_content", swap)
    assert [one.path for one in state.sweep(FINAL).taken_back] == [".git/config"]
    assert "!x" not in config.read_text(encoding="utf-8")


def test_a_hook_is_not_waited_for_and_the_work_tree_is(root: Path) -> None:
    state = state_of(root)
    write(root / ".git/index.lock")
    write(root / ".git/hooks/pre-commit")
    write(root / "sub/.git/hooks/pre-push")
    write(root / ".vscode/tasks.json")
    taken = {one.path for one in state.sweep(Sweep()).taken_back}
    assert taken == {".git/hooks/pre-commit", "sub/.git/hooks/pre-push"}
    assert (root / ".vscode/tasks.json").exists()


def test_a_quick_sweep_takes_what_is_planted_and_leaves_what_can_wait(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "GIT_PAUSE_NS", 0)
    write(root / "Makefile", "all:")
    write(root / ".npmrc", "mine")
    state = state_of(root)
    write(root / ".envrc", "evil")
    write(root / ".npmrc", "evil")
    write(root / "pip.conf", "")
    write(root / "Makefile", "all: x")
    write(root / ".git/config", "[alias]\n\tst = !x\n")
    quick = Sweep(quick=True)
    found = state.sweep(quick)
    assert {one.path for one in found.taken_back} == {".envrc", ".npmrc", ".git/config"}
    assert not found.changed
    assert not state.sweep(quick).taken_back
    write(root / "pip.conf", "evil")
    assert [one.path for one in state.sweep(quick).taken_back] == ["pip.conf"]
    (root / ".npmrc").unlink()
    write(root / "pip.conf", "")
    last = state.sweep(Sweep())
    assert [one.path for one in last.taken_back] == ["pip.conf"]
    assert {one.path for one in last.changed} == {"Makefile", ".npmrc"}


def test_a_quick_sweep_leaves_the_work_tree_to_git_for_a_second(root: Path) -> None:
    state = state_of(root)
    write(root / ".git/index")
    write(root / ".envrc", "of a branch")
    write(root / ".git/hooks/pre-commit")
    found = state.sweep(Sweep(quick=True))
    assert [one.path for one in found.taken_back] == [".git/hooks/pre-commit"]
    assert found.held
    assert [one.path for one in state.sweep(Sweep()).taken_back] == [".envrc"]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("how", [Sweep(), FINAL])
def test_a_file_that_changes_without_a_new_time_stamp_is_put_back(root: Path, how: Sweep) -> None:
    mine = write(root / ".envrc", "mine")
    state = state_of(root)
    for _ in range(2):
        state.sweep(how)
        before = mine.stat()
        # As through a mapping of the file: the look is shown the same time stamp.
        mine.write_text("evil", encoding="utf-8")
        signature = state.tree.signature
        state.tree.signature = lambda parts, real=signature, old=before: (
            file_stamp.full_stamp(old) if tuple(parts) == (".envrc",) else real(parts)
        )
        assert [one.path for one in state.sweep(how).taken_back] == [".envrc"]
        state.tree.signature = signature
        assert mine.read_text(encoding="utf-8") == "mine"


def test_what_changes_again_within_one_tick_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MAX_READ_AGAIN", 0)
    mine = write(root / ".envrc", "mine")
    state = state_of(root)
    state._rebased_ns = 2**62  # it is not read for being touched
    signature = state.tree.signature
    tick = (*file_stamp.full_stamp(mine.stat())[:-1], time.time_ns() + 60 * 10**9)
    state.tree.signature = lambda parts: tick if tuple(parts) == (".envrc",) else signature(parts)
    for text in ("mine", "evil", "mine", "evil"):
        mine.write_text(text, encoding="utf-8")
        taken = [one.path for one in state.sweep(Sweep()).taken_back]
        assert taken == ([".envrc"] if text == "evil" else [])


def test_what_the_operator_changed_while_no_guest_ran_is_the_operator_s(root: Path) -> None:
    write(root / ".npmrc", "mine")
    state = state_of(root)
    write(root / ".npmrc", "mine, too")
    write(root / ".envrc", "mine")
    write(root / ".git/config", "[alias]\n\tst = status\n")
    found = state.sweep(Sweep(by_operator=lambda: True))
    assert (found.adopted, found.taken_back) == (3, [])
    assert not state.sweep(FINAL).taken_back
    write(root / ".npmrc", "evil")
    state.sweep(FINAL)
    assert (root / ".npmrc").read_text(encoding="utf-8") == "mine, too"


def test_what_no_guest_can_write_is_the_operator_s(root: Path) -> None:
    state = state_of(root)
    hook = write(root / ".git/hooks/pre-commit")
    with open_folder(str(root), (".git", "hooks")) as fd:
        closed = Sweep(closed={(".git", "hooks"): fd})
        assert not state.sweep(closed).taken_back
        # Another folder in the place of the closed one is not closed.
        (root / ".git/hooks").rename(root / "away")
        write(root / ".git/hooks/pre-push", "evil")
        write(root / ".git/hooks/pre-commit", "evil")
        taken = {one.path for one in state.sweep(closed).taken_back}
    assert taken == {".git/hooks/pre-push", ".git/hooks/pre-commit"}
    assert hook.read_text(encoding="utf-8") == "x"
    assert not state.sweep(FINAL).taken_back


def test_protected_folders_are_closed_where_git_writes_none(root: Path) -> None:
    for path in (".vscode/tasks.json", ".husky/pre-push", "sub/.idea/a.xml", ".envrc"):
        write(root / path)
    rules = rules_for(str(root), [(str(root), ".husky/pre-commit")])
    state = state_of(root, rules)
    assert (state.in_git, state.own_dirs) == (True, ((".vscode",),))
    plain = root / "sub"
    state = state_of(plain)
    assert (state.in_git, state.own_dirs) == (False, ((".idea",),))
    write(plain / ".git", "gitdir: elsewhere\n")
    assert state_of(plain).in_git


def test_a_link_that_is_swapped_in_leads_the_daemon_nowhere(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "tasks.json", "theirs")
    write(root / ".vscode/tasks.json", "mine")
    state = state_of(root)
    write(root / ".vscode/tasks.json", "changed")
    found = state.tree.look()
    (root / ".vscode/tasks.json").unlink()
    (root / ".vscode").rmdir()
    (root / ".vscode").symlink_to(outside)
    state.tree.look = lambda: found  # the look was before the swap
    state.sweep(FINAL)
    assert (outside / "tasks.json").read_text(encoding="utf-8") == "theirs"


def test_a_tree_is_put_in_order_after_the_daemon_was_killed(root: Path, tmp_path: Path) -> None:
    write(root / ".npmrc", "mine")
    write(root / "hooks.d/readme", "mine")
    write(root / ".git/config", "[core]\n\thooksPath = hooks.d\n")
    memory = TreeMemory(tmp_path / "memory")
    memory.keep(state_of(root).kept())
    assert list(memory.left()) == []  # its daemon, this process, lives
    (file,) = (tmp_path / "memory").glob("*.json")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(f'"{os.getpid()}:', '"1:0'), encoding="utf-8")
    write(root / ".npmrc", "evil")
    write(root / ".envrc", "evil")
    write(root / "hooks.d/pre-commit", "evil")
    write(root / ".git/config", "[core]\n\thooksPath = elsewhere\n")
    (kept,) = memory.left()
    fresh = ProtectedState(ProtectedTree(str(root), ProtectedRules()), tmp_path / "kept")
    taken = {one.path for one in fresh.recover(kept).taken_back}
    assert taken == {".npmrc", ".envrc", "hooks.d/pre-commit", ".git/config"}
    assert (root / ".npmrc").read_text(encoding="utf-8") == "mine"
    assert "hooksPath = hooks.d" in (root / ".git/config").read_text(encoding="utf-8")
    assert list(memory.left()) == []  # each once


def test_paths_that_the_operator_allows_are_left_alone(root: Path) -> None:
    allowed = [(str(root), ".husky"), (str(root), ".git/hooks"), (str(root), ".git/config")]
    state = state_of(root, rules_for(str(root), allowed))
    write(root / ".husky/pre-commit")
    write(root / ".git/hooks/pre-commit")
    write(root / ".git/config", "[alias]\n\tst = !x\n")
    write(root / "sub/.husky/pre-commit")
    assert [one.path for one in state.sweep(FINAL).taken_back] == ["sub/.husky/pre-commit"]
    assert state.hook_dirs == ()


def test_decoys_hide_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 10)
    monkeypatch.setattr(module, "MAX_REVIEWED", 5)
    state = state_of(root)
    for number in range(50):
        write(root / f"x{number}.mk")
        write(root / f"d{number}/.envrc")
    write(root / "z/z/z/.npmrc")
    found = state.sweep(FINAL)
    assert len(found.taken_back) == 51
    assert not list(root.rglob(".envrc"))
    assert not list(root.rglob(".npmrc"))
    assert found.complete


def test_odd_names_and_deep_folders_stop_no_sweep(
    root: Path, request: pytest.FixtureRequest
) -> None:
    state = state_of(root)
    odd = os.fsdecode(b"\xff")
    write(root / f"{odd}.mk")
    write(root / ".vscode" / odd)
    (root / ".git/config").unlink()
    deep = os.open(root / ".git", os.O_RDONLY)
    # What follows is too deep for Python's own way of removing it.
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", str(root)], check=True))
    names = ["config", *["d"] * 1500]
    for name in names:  # deeper than a path can say, or a process recurse
        os.mkdir(name, dir_fd=deep)
        below = os.open(name, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    write(root / ".envrc")
    found = state.sweep(FINAL)
    taken = {one.path for one in found.taken_back}
    assert {".envrc", ".vscode/\ufffd", ".git/config"} == taken
    assert all(one.path.isprintable() and one.path.encode() for one in found.changed)
    assert (root / ".git/config").read_text(encoding="utf-8") == "[core]\n\tbare = false\n"
    again = state_of(root)
    memory = TreeMemory(root.parent / "memory")
    memory.keep(again.kept())
    assert again.recover(again.kept()).taken_back == []


def test_what_is_kept_of_a_flood_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MAX_MOVED", 5)
    monkeypatch.setattr(sweep, "MAX_KEPT_FILES", 8)
    state = state_of(root)
    for _ in range(3):
        for number in range(20):
            write(root / f"d{number}/.envrc")
        assert len(state.sweep(FINAL).taken_back) == 20
    assert len(list((root.parent / "kept").iterdir())) == 8


def test_files_of_the_operator_that_are_too_many_to_remember_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 10)
    for number in range(30):
        write(root / f".claude/work/f{number}", str(number))
    state = ProtectedState(ProtectedTree(str(root), ProtectedRules()), root.parent / "kept")
    settle()  # a tick of the file system's clock lies between the files and the cage
    assert not state.rebase()
    write(root / ".envrc")
    for number in range(0, 30, 3):
        (root / f".claude/work/f{number}").unlink()
    assert [one.path for one in state.sweep(FINAL).taken_back] == [".envrc"]
    assert len(list((root / ".claude/work").iterdir())) == 20


def test_a_copy_is_exchanged_only_while_nobody_writes_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git reads, and renames a moment later: what it read in between would be lost."""
    state = ProtectedState(ProtectedTree(str(root), ProtectedRules()), tmp_path / "kept")
    state.rebase()
    (folder,) = state.copies.folders()
    copy = Path(folder, "config")
    planted = "[core]\n\tbare = false\n\tpager = touch ran\n[user]\n\tname = n\n"
    write(copy, planted)
    for _ in range(3):
        state.sweep(Sweep(covered=True))
        assert copy.read_text("utf-8") == planted
    published = (root / ".git/config").read_text("utf-8")
    assert ("pager" in published, "name = n" in published) == (False, True)
    monkeypatch.setattr(copies, "RESTING_NS", -1)
    state.sweep(Sweep(covered=True))
    assert "pager" not in copy.read_text("utf-8")
