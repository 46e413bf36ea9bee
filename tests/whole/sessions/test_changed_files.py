"""An agent is told which of the files it has read are not what it read any more."""

from __future__ import annotations

import os
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh

CHANGED = "These files have changed since you read them; read them again before you rely on them:"
GONE = "These files, which you have read, are gone:"


def notes(body: dict[str, Any]) -> list[list[str]]:
    """Return the notes about files in a request, each as its lines."""
    said = [one["content"] for one in body["messages"][1:] if one["role"] == "system"]
    return [one.splitlines() for one in said if one.startswith("These files")]


def every(model: ModelServer, word: str) -> list[list[list[str]]]:
    """Return the notes of all requests of a run, in order."""
    return [notes(body) for body in asked(model, word)]


def read(path: str) -> Any:
    """Let the agent read a file."""
    return call("file.read", path=path)


@whole("AT-BEY-07")
def test_what_others_changed_is_told_before_the_next_step_until_it_is_read_again(
    project: Project, talk: Talk
) -> None:
    project.describe(cage="disabled")
    project.reload()
    talk = Talk(project, talk.model)
    for name in ("a.txt", "b.txt", "c.txt"):
        project.write(name, "as it was\n")
    first = talk.hear(read("./a.txt"), read("./b.txt"), read("./c.txt"), say("read"))
    assert every(talk.model, first["word"]) == [[], [], [], []]

    project.write("a.txt", "by a person\n")
    (project.root / "c.txt").unlink()
    project.write("nobody-read-it.txt", "new\n")
    os.utime(project.root / "b.txt")  # touched, and still what it was
    second = talk.hear(read("./b.txt"), read("./a.txt"), say("done"))
    assert every(talk.model, second["word"]) == [
        [[CHANGED, "- ./a.txt", GONE, "- ./c.txt"]],
        [[CHANGED, "- ./a.txt"]],  # what is gone is told once
        [],  # it was read again
    ]
    # A command of the agent's own counts too, and what it writes with its tools does not.
    third = talk.hear(
        call("shell.bash", command="echo more >> a.txt"),
        call("file.write", path="./b.txt", content="mine\n"),
        say("done"),
    )
    told = [[CHANGED, "- ./a.txt"]]
    assert every(talk.model, third["word"]) == [[], told, told]
    # Back to what was read: there is nothing to tell.
    project.write("a.txt", "by a person\n")
    fourth = talk.hear(say("ok"))
    assert every(talk.model, fourth["word"]) == [[]]
    assert "These files" not in str(talk.entries()), "nothing of it is stored"


@whole("AT-BEY-07")
def test_sessions_and_agents_hear_only_of_what_they_read_themselves(
    project: Project, talk: Talk, model: ModelServer
) -> None:
    coder = agent("file.*", "edit.*", cage=caged("rw:."))
    project.describe(cage="disabled", subagents={"coder": coder})
    project.reload()
    talk, other = Talk(project, model), Talk(project, model)
    project.write("a.txt", "one\n")
    project.write("b.txt", "one\n")
    talk.hear(read("./a.txt"), say("ok"))
    other.hear(read("./b.txt"), say("ok"))
    word = fresh("child")
    edit = {"path": "./a.txt", "old_string": "one", "new_string": "two"}
    model.play(word, read("./a.txt"), call("edit.text", **edit), say("edited"))
    run = talk.hear(call("agent-coder", message=word), say("ok"))
    assert project.read("a.txt") == "two\n"
    # The one that changed it knows; the one that had it changed is told.
    assert every(model, word) == [[], [], []]
    assert every(model, run["word"]) == [[], [[CHANGED, "- ./a.txt"]]]
    project.write("b.txt", "by a person\n")
    assert every(model, talk.hear(say("ok"))["word"]) == [[[CHANGED, "- ./a.txt"]]]
    assert every(model, other.hear(say("ok"))["word"]) == [[[CHANGED, "- ./b.txt"]]]


@whole("AT-BEY-07")
@pytest.mark.parametrize("count", [20, 23])
def test_a_long_list_is_cut(project: Project, talk: Talk, count: int) -> None:
    project.describe(cage="disabled")
    project.reload()
    talk = Talk(project, talk.model)
    for number in range(count):
        project.write(f"f{number}.txt", "one\n")
    talk.hear(*(read(f"./f{number}.txt") for number in range(count)), say("ok"))
    for number in range(count):
        project.write(f"f{number}.txt", "two\n")
    ((note,),) = every(talk.model, talk.hear(say("ok"))["word"])
    newest = [f"- ./f{number}.txt" for number in reversed(range(count))][:20]
    assert note == [CHANGED, *newest, *(["(3 more)"] if count == 23 else [])]
