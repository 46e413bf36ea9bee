"""The example `rewind.lua` in a running daemon: words and files go back together."""

from __future__ import annotations

from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, current, entries, exchange
from whole.harness.daemon import wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command, git, repository

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


PLANTED = (".envrc", ".husky/pre-commit", "sub/.vscode/tasks.json")
PLANT = """
kage.request_capabilities({'exec'})
local function sh(text) return kage.exec{cmd='sh', args={'-c', text}} end
local made = sh([[
  export GIT_INDEX_FILE=.git/planted; git read-tree HEAD
  blob=$(echo planted | git hash-object -w --stdin)
  for path in PATHS a.txt; do git update-index --add --cacheinfo 100644,$blob,$path; done
  git commit-tree -p HEAD -m planted $(git write-tree)]])
local back = sh('git restore --source ' .. made.stdout:gsub('%s', '') .. ' -- .')
return {made.code, back.code}
""".replace("PATHS", " ".join(PLANTED))


def test_going_back_to_a_commit_that_a_guest_made_plants_nothing(
    rewind: Scripts, project: Project, model: ModelServer
) -> None:
    """A commit holds what no file of the work tree ever held; `git restore` brings it out."""
    mine = "export MINE=1\n"
    project.write(".envrc", mine)
    rewind.grant(rewind=BOTH, probe=["exec"])
    example = REWIND.read_text(encoding="utf-8")
    shown = rewind.load(rewind=example, probe=command("eval", PLANT))
    assert {one["state"] for one in shown.values()} == {"running"}
    session = begin(project)
    changes(project, model, "kite-one", "two\n", session)
    settled(rewind)
    for _ in range(2):
        assert rewind.again() == [0, 0]
        assert project.read("a.txt") == "planted\n", "the rest of the commit is there"
        assert project.read(".envrc") == mine
        assert not [one for one in PLANTED[1:] if (project.root / one).exists()]
    rows = [one["data"]["path"] for one in project.daemon.audit("protected_path.taken_back")]
    mine_of = {one for one in rows if one.startswith(f"{project.root}/")}
    assert mine_of == {str(project.root / one) for one in PLANTED}
    # The example's own way back and forth brings out nothing of it either.
    project.write("a.txt", "two\n")
    for way, text in (("undo", "one\n"), ("redo", "two\n"), ("undo", "one\n")):
        found = rewind.run(way)
        assert not found["is_error"], found
        assert (project.read("a.txt"), project.read(".envrc")) == (text, mine)
    assert not [one for one in PLANTED[1:] if (project.root / one).exists()]
