"""What git's configuration names: followed from file to file, for every kind of work tree."""

from __future__ import annotations

import pytest

from kaged.kernel.git_names import (
    MAX_FOLLOWED,
    GitRepository,
    folders_above,
    follow_configs,
    operator_configs,
    repository_in,
    repository_of,
)

HOME = "/home/t"


def names(
    files: dict[str, str], repository: GitRepository, *further: str
) -> tuple[set[str], set[str]]:
    """Return what a repository names, of files given as texts."""
    found = follow_configs(
        repository,
        lambda path: files[path].encode() if path in files else None,
        home=HOME,
        further=further,
    )
    return set(found.files), set(found.hooks)


@pytest.mark.parametrize(
    ("pointers", "configs"),
    [
        ({}, ("/w/.git/config", "/w/.git/config.worktree")),
        ({"/w/.git": "gitdir: /m/.git\n"}, ("/m/.git/config", "/m/.git/config.worktree")),
        (
            {
                "/w/.git": "gitdir: /m/.git/worktrees/w\n",
                "/m/.git/worktrees/w/commondir": "../..\n",
            },
            ("/m/.git/worktrees/w/../../config", "/m/.git/worktrees/w/config.worktree"),
        ),
        ({"/w/.git": "no pointer\n"}, ("/w/.git/config", "/w/.git/config.worktree")),
        ({"/w/.git": "gitdir: a\0b"}, ("/w/.git/config", "/w/.git/config.worktree")),
    ],
    ids=["folder", "file", "linked", "something else", "nul"],
)
def test_a_work_tree_s_configuration_is_found(
    pointers: dict[str, str], configs: tuple[str, ...]
) -> None:
    found = repository_of("/w", lambda path: pointers.get(path, "").encode() or None)
    assert found == GitRepository("/w", configs)


def test_includes_are_followed_whatever_their_condition_and_end() -> None:
    files = {
        "/w/.git/config": '[include]\n\tpath = one\n[includeIf "gitdir:/x"]\n\tpath = ~/two\n',
        "/w/.git/one": "[include]\n\tpath = config\n\tpath = ../deep/three\n",
        "/home/t/two": "[core]\n\thooksPath = two-hooks\n",
        "/w/.git/../deep/three": "[core]\n\thooksPath = /abs\n\thooksPath = ~/h\n[x",  # malformed
    }
    found, hooks = names(files, repository_of("/w", lambda _: None))
    assert found == {*files, "/w/.git/config.worktree"}
    assert hooks == {"/w/two-hooks"}
    files["/w/.git/../deep/three"] = files["/w/.git/../deep/three"].removesuffix("[x")
    assert names(files, repository_of("/w", lambda _: None))[1] == {
        "/w/two-hooks",
        "/abs",
        "/home/t/h",
    }


def test_the_operator_s_own_settings_hold_for_every_work_tree() -> None:
    own = operator_configs({}, HOME)
    assert "/home/t/.gitconfig" in own
    assert "/home/t/.config/git/config" in own
    assert "/elsewhere/git/config" in operator_configs({"XDG_CONFIG_HOME": "/elsewhere"}, HOME)
    files = {"/home/t/.gitconfig": "[core]\n\thooksPath = .githooks\n"}
    for repository in (repository_of("/w", lambda _: None), repository_in("/bare.git")):
        assert names(files, repository, *own)[1] == {f"{repository.work_tree}/.githooks"}


def test_names_are_the_file_system_s_bytes() -> None:
    files = {"/w/.git/config": "[core]\n\thooksPath = é\n"}
    assert names(files, repository_of("/w", lambda _: None))[1] == {"/w/é"}


def test_a_chain_without_an_end_is_cut() -> None:
    asked: list[str] = []

    def read(path: str) -> bytes:
        asked.append(path)
        return f"[include]\n\tpath = {len(asked)}\n".encode()

    follow_configs(repository_in("/r"), read, home=HOME)
    assert len(asked) == MAX_FOLLOWED


def test_folders_above_end_at_the_top() -> None:
    assert list(folders_above("/a/b/c")) == ["/a/b", "/a", "/"]
