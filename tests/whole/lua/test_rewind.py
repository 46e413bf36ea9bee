"""The example `rewind.lua` in a running daemon: words and files go back together."""

from __future__ import annotations

from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, current, entries, exchange
from whole.harness.daemon import wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts, git, repository

REWIND = Path(__file__).parents[3] / "plugins" / "examples" / "rewind.lua"
BOTH = ["session_write", "exec"]


@pytest.fixture
def rewind(scripts: Scripts, project: Project) -> Scripts:
    """Return a project in git with the example loaded and both grants."""
    repository(project.root)
    project.write(".gitignore", ".kaged/\n")
    git("add", "--", ".gitignore", cwd=project.root)
    git("commit", "-q", "-m", "second", cwd=project.root)
    scripts.grant(rewind=BOTH)
    shown = scripts.load(rewind=REWIND.read_text(encoding="utf-8"))
    assert shown["rewind"]["state"] == "running", shown
    return scripts


def said(project: Project) -> list[str]:
    """Return what was said in the current session, person and agent in turn."""
    found: list[str] = []
    for one in entries(project, current(project)):
        if one["role"] in {"user", "assistant"}:
            found += [part["text"] for part in one["content"]["content"] if part["type"] == "text"]
    return found


def settled(rewind: Scripts) -> None:
    """Wait until the example has handled what it was told; nothing was undone, so nothing moves."""
    found = rewind.run("redo")
    assert found["is_error"], found


def kept(project: Project) -> list[str]:
    """Return the commits that the example keeps."""
    words = ["for-each-ref", "--format=%(objectname)", "refs/kaged/rewind"]
    return git(*words, cwd=project.root).split()


def changes(project: Project, model: ModelServer, word: str, text: str, session: str) -> None:
    """Let the agent change a.txt and say so."""
    turns = [
        call("file.read", path="a.txt"),
        call("file.write", path="a.txt", content=text),
        say(f"done {word}"),
    ]
    exchange(project, model, word, *turns, session=session)


@whole("LC-EX-01")
def test_the_example_loads_and_asks_for_exactly_its_two_powers(rewind: Scripts) -> None:
    asked = rewind.audit("lua.capability.granted", "lua.capability.refused")
    assert sorted(one["capability"] for one in asked) == ["exec", "session_write"]
    assert sorted(rewind.state("rewind")["active"]) == ["exec", "session_write"]
    names = {str(one["name"]) for one in rewind.describe()["commands"]}
    assert names == {"undo", "redo", "rewind"}


@whole("LC-EX-02")
def test_a_turn_leaves_a_snapshot_and_nothing_else_in_the_repository(
    rewind: Scripts, project: Project, model: ModelServer
) -> None:
    root = project.root
    project.write("mine.log", "untracked\n")

    def state() -> list[str]:
        words = (["rev-parse", "HEAD"], ["branch"], ["stash", "list"])
        return [git(*one, cwd=root) for one in words]

    before, index = state(), (root / ".git" / "index").read_bytes()
    changes(project, model, "sparrow-one", "two\n", begin(project))
    settled(rewind)
    wait_for(
        lambda: {"one", "two"} <= {git("show", f"{one}:a.txt", cwd=root) for one in kept(project)}
    )
    assert state() == before
    assert (root / ".git" / "index").read_bytes() == index
    assert project.read("mine.log") == "untracked\n"


@whole("LC-EX-03", "LC-EX-05")
def test_undo_and_redo_move_words_and_files_together(
    rewind: Scripts, project: Project, model: ModelServer
) -> None:
    session = begin(project)
    changes(project, model, "robin-one", "two\n", session)
    changes(project, model, "robin-two", "three\n", session)
    settled(rewind)
    before = entries(project, session)
    project.write("notes.txt", "by hand\n")

    found = rewind.run("undo")
    assert not found["is_error"], found
    assert said(project) == ["robin-one", "done robin-one"]
    assert project.read("a.txt") == "two\n"
    assert project.read("notes.txt") == "by hand\n", "what nobody's turn made stays"
    assert entries(project, session) == before

    found = rewind.run("redo")
    assert not found["is_error"], found
    assert current(project) == session
    assert entries(project, session) == before
    assert project.read("a.txt") == "three\n"

    for text in ("two\n", "one\n"):
        assert not rewind.run("undo")["is_error"]
        assert project.read("a.txt") == text
    assert said(project) == []
    assert rewind.run("undo")["is_error"]
    for text in ("two\n", "three\n"):
        assert not rewind.run("redo")["is_error"]
        assert project.read("a.txt") == text
    assert said(project)[-1] == "done robin-two"
    assert rewind.run("redo")["is_error"]


@whole("LC-EX-02", "LC-EX-03")
def test_a_file_changed_by_hand_stops_the_undo_and_nothing_moves(
    rewind: Scripts, project: Project, model: ModelServer
) -> None:
    session = begin(project)
    changes(project, model, "thrush-one", "two\n", session)
    settled(rewind)
    project.write("a.txt", "mine\n")
    found = rewind.run("undo")
    assert found["is_error"]
    assert "a.txt" in str(found["text"])
    assert current(project) == session
    assert project.read("a.txt") == "mine\n"


@whole("LC-EX-04")
def test_rewind_goes_to_the_point_that_is_picked(
    rewind: Scripts, project: Project, model: ModelServer
) -> None:
    old = begin(project)
    changes(project, model, "wren-one", "two\n", old)
    changes(project, model, "wren-two", "three\n", old)
    settled(rewind)
    found = rewind.answered(lambda: rewind.run("rewind", interactive=True), 1, True)
    assert not found["is_error"], found
    assert said(project) == ["wren-one"]
    assert project.read("a.txt") == "one\n"
    assert current(project) != old
    assert old in [one["id"] for one in project.get("/sessions")["items"]]
    assert rewind.run("rewind")["text"] == "rewind: cancelled", "nobody can be asked"
    assert said(project) == ["wren-one"]


@whole("LC-EX-06")
def test_the_example_degrades_with_each_missing_grant(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    repository(project.root)
    source = REWIND.read_text(encoding="utf-8")
    scripts.grant(rewind=["exec"])
    shown = scripts.load(rewind=source)
    assert (shown["rewind"]["state"], shown["rewind"]["commands"]) == ("running", [])
    notice = "rewind: disabled (grant session_write)"
    assert scripts.notices().count(notice) == 1
    session = begin(project)
    changes(project, model, "plover-none", "two\n", session)
    assert kept(project) == []
    assert scripts.notices().count(notice) == 1

    scripts.grant(rewind=["session_write"])
    scripts.reload()
    changes(project, model, "plover-words", "three\n", session)
    found = scripts.run("undo")
    assert not found["is_error"], found
    assert said(project) == ["plover-none", "done plover-none"]
    assert project.read("a.txt") == "three\n", "files are left alone"
    assert kept(project) == []
