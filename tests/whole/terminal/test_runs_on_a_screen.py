"""`kaged run` as a person sees it in a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, calls, cut_off, say, slowly
from whole.harness.project import Project
from whole.harness.screen import Screen
from whole.harness.talk import fresh


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project whose agent may start commands."""
    return daemon.load(Project(tmp_path / "p", cage="disabled"))


MARKDOWN = """\
# The plan

I will **read** it and use `Vec<T>` and <div>.

```python
def greet(name):
    return name
```

1. one
2. two
"""


@pytest.mark.parametrize("columns", [80, 200])
def test_markdown_is_rendered_as_it_streams(
    project: Project, model: ModelServer, columns: int
) -> None:
    word = fresh()
    model.play(word, slowly(say(MARKDOWN)))
    with Screen(
        project.daemon, "run", f"{word} please", cwd=project.root, columns=columns
    ) as screen:
        assert screen.wait() == 0
        seen = screen.text
    assert "The plan" in seen
    assert "# The plan" not in seen
    assert "I will read it and use Vec<T> and <div>." in seen
    assert "```" not in seen
    assert " def greet(name):" in seen
    assert " 2 two" in seen
    assert "completed in 1 step" in seen
    assert "thinking ·" not in seen, "the line at the bottom goes with the run"
    assert seen.count("The plan") == 1, "what was drawn while it came is not left behind"


def test_what_broke_off_is_not_left_on_the_screen(project: Project, model: ModelServer) -> None:
    word = fresh()
    text = "The whole answer in one line, and nothing of it twice."
    model.play(word, cut_off(say(text)), say(text))
    with Screen(project.daemon, "run", f"{word} please", cwd=project.root) as screen:
        assert screen.wait() == 0
        seen = screen.text
    assert "retrying the model" in seen
    assert seen.count("The whole") == 1
    assert text in seen


def test_a_status_line_says_that_it_lives_and_what_it_may_do(
    project: Project, model: ModelServer
) -> None:
    word = fresh()
    project.write("a.txt", "alpha\n")
    slow = call("shell.bash", command="sleep 1; echo woken")
    model.play(word, slow, say("Done."))
    with Screen(project.daemon, "run", f"{word} please", cwd=project.root) as screen:
        screen.until("shell.bash sleep 1; echo woken ·", "working ·")
        screen.until("default · ", "% of 128k", "no cage")
        assert screen.wait() == 0
        seen = screen.text
    assert "✓ shell.bash sleep 1; echo woken" in seen
    assert "  woken" in seen


def test_edits_are_diffs_and_commands_their_last_lines_in_colors(
    project: Project, model: ModelServer
) -> None:
    word = fresh()
    project.write("a.txt", "one\ntwo\nthree\n")
    edit = call("edit.text", path="a.txt", old_string="two", new_string="2 and more")
    many = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; exit 3"
    model.play(
        word, call("file.read", path="a.txt"), edit, call("shell.bash", command=many), say("Done.")
    )
    with Screen(project.daemon, "run", f"{word} please", cwd=project.root) as screen:
        assert screen.wait() == 0
        seen = screen.text
        assert screen.colors_of("+2 and more") == {"green"}
        assert screen.colors_of("-two") == {"red"}
    assert "line 9" in seen
    assert "exit code 3" in seen
    assert project.read("a.txt") == "one\n2 and more\nthree\n"


def test_two_subagents_at_work_have_a_line_each(project: Project, model: ModelServer) -> None:
    project.describe(
        subagents={
            name: {
                "description": "Helps.",
                "system_prompt": f"You are {name}.",
                "model": "default",
                "tools": {"shell.*": {"enabled": True}},
                "cage": "disabled",
            }
            for name in ("left", "right")
        }
    )
    project.reload()
    word, left, right = fresh(), fresh("left"), fresh("right")
    wait = call("shell.bash", command="sleep 2; echo $((20 + 22))")
    for one in (left, right):
        model.play(one, wait, say(f"Done with {one}"))
    both = calls(
        ("agent-left", {"message": f"{left} now"}), ("agent-right", {"message": f"{right} now"})
    )
    model.play(word, both, say("Both are back."))
    with Screen(project.daemon, "run", f"{word} please", cwd=project.root, columns=120) as screen:
        screen.until("left shell.bash sleep 2", "right shell.bash sleep 2")
        assert screen.wait() == 0
        seen = screen.text
    assert "Both are back." in seen
    assert f": Done with {left}" in seen
    assert f": Done with {right}" in seen


def test_escapes_of_a_model_and_of_a_command_are_shown_and_not_obeyed(
    project: Project, model: ModelServer
) -> None:
    word = fresh()
    evil = "\x1b]0;owned\x07\x1b[2Jgone \x1b[31mred"
    shout = call("shell.bash", command="printf '\\033[2Jgone\\033]0;owned\\007 tail'")
    model.play(word, {**shout, "content": f"Look: {evil}"}, say(evil))
    with Screen(project.daemon, "run", f"{word} please", cwd=project.root) as screen:
        assert screen.wait() == 0
        raw, seen = screen.raw, screen.text
    assert b"\x1b]0;owned" not in raw
    assert b"\x1b[2J" not in raw
    assert "u001b[2Jgone" in seen
    assert "tail" in seen


def test_without_colors_there_are_none_and_a_dumb_terminal_gets_plain_text(
    project: Project, model: ModelServer
) -> None:
    word = fresh()
    model.play(word, say("Some **bold** words."))
    model_word = fresh()
    model.play(model_word, say("Some **bold** words."))
    with Screen(project.daemon, "run", f"{word} please", cwd=project.root, NO_COLOR="1") as screen:
        assert screen.wait() == 0
        assert "Some bold words." in screen.text
        assert screen.colors_of("Some bold words.") == {"default"}
    with Screen(
        project.daemon, "run", f"{model_word} please", cwd=project.root, term="dumb"
    ) as screen:
        assert screen.wait() == 0
        assert "Some **bold** words." in screen.text
        assert b"\x1b" not in screen.raw
