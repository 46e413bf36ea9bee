"""`kaged chat` as a person sees it in a terminal, and what they can type."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, say, slowly
from whole.harness.project import Project
from whole.harness.screen import CTRL_C, CTRL_D, ENTER, ESCAPE, PASTE, TAB, UP, Screen
from whole.harness.talk import fresh

LONG = {**say("A story that goes on and on. " * 40), "chunkSize": 12, "latency": 60}
LISTING = """
import atexit, json, sys
atexit.register(lambda: open({!r}, "w").write(json.dumps(sorted(sys.modules))))
"""
READY = "/help"


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project whose agent may start commands."""
    return daemon.load(Project(tmp_path / "p", cage="disabled"))


@pytest.fixture
def chat(project: Project) -> Callable[..., Screen]:
    """Return a starter of chats in new sessions."""

    def start(*arguments: str, **more: Any) -> Screen:
        options = arguments or ("--new",)
        return Screen(project.daemon, "chat", *options, cwd=project.root, **more)

    return start


def latest(project: Project) -> dict[str, Any]:
    """Return the session that was used last."""
    return dict(project.get("/sessions?limit=1")["items"][0])


def said_in(project: Project, session: str) -> list[str]:
    """Return what was said to the agent."""
    entries = project.get(f"/sessions/{session}/entries?limit=200")["items"]
    return [
        "".join(block["text"] for block in one["content"]["content"])
        for one in entries
        if one["role"] == "user"
    ]


def test_a_message_is_answered_the_session_gets_a_title_and_the_chat_ends(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word, second = fresh(), fresh()
    model.play(word, say("The **first** answer."))
    model.play(second, say("The second answer."))
    with chat() as screen:
        screen.until(READY)
        screen.type(f"# {word} look into it", ENTER)
        screen.until("The first answer.", "completed in 1 step")
        screen.type(f"{second} again", ENTER)
        seen = screen.until("The second answer.")
        assert f"> # {word} look into it" in seen
        screen.type(CTRL_D)
        assert screen.wait() == 0
    found = latest(project)
    assert found["title"] == f"{word} look into it"
    assert said_in(project, found["id"]) == [f"# {word} look into it", f"{second} again"]


def test_a_paste_of_several_lines_is_one_message_and_keys_edit_it(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word = fresh()
    model.play(word, say("Got it all."))
    with chat() as screen:
        screen.until(READY)
        screen.type(PASTE.format(f"{word} one\nsecond line\nthird line"))
        screen.until("third line")
        screen.type("\x1b\r", "fourth", ENTER)
        screen.until("Got it all.")
        screen.type(CTRL_D)
        screen.wait()
    wanted = f"{word} one\nsecond line\nthird line\nfourth"
    assert said_in(project, latest(project)["id"]) == [wanted]


def test_what_is_typed_before_the_prompt_is_there_is_sent_line_by_line(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word, second = fresh(), fresh()
    model.play(word, say("The first answer."))
    model.play(second, say("The second answer."))
    with chat() as screen:
        screen.type(f"{word} one", ENTER)
        screen.until("The first answer.")
        screen.type(f"{second} two", ENTER)
        screen.until("The second answer.")
        screen.type(CTRL_D)
        assert screen.wait() == 0
    assert said_in(project, latest(project)["id"]) == [f"{word} one", f"{second} two"]


def test_history_is_kept_for_the_project_privately_and_without_answers(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word = fresh()
    form = call(
        "kaged.ask",
        questions=[{"id": "q", "title": "Which secret?", "options": [], "multiple": False}],
    )
    model.play(word, form, say("Thank you."), say("Here again."))
    with chat() as screen:
        screen.until(READY)
        screen.type(f"{word} ask me", ENTER)
        screen.until("Which secret?", "q>")
        screen.type("hunter2-answer", ENTER)
        screen.until("Thank you.")
        screen.type(CTRL_D)
        screen.wait()
    with chat("--session", latest(project)["id"]) as screen:
        screen.until(READY)
        screen.type(UP)
        screen.until(f"> {word} ask me")
        screen.type(ENTER)
        screen.until("Here again.")
        screen.type(CTRL_D)
        screen.wait()
    [file] = list(project.daemon.home.rglob(f"chat-history.d/{project.id}"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_text(encoding="utf-8")
    assert f"{word} ask me" in kept
    assert "hunter2-answer" not in kept


def test_files_are_completed_behind_an_at_sign_without_what_git_ignores(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word = fresh()
    model.play(word, say("Read."))
    project.write("src/deep/harbor_lights.py", "x = 1\n")
    project.write("build/harbor_built.py", "x = 1\n")
    project.write(".gitignore", "/build/\n")
    with chat() as screen:
        screen.until(READY)
        screen.type(f"{word} read @harb")
        seen = screen.until("src/deep/harbor_lights.py")
        assert "harbor_built" not in seen
        screen.type(TAB, ENTER)
        screen.until("Read.")
        screen.type(CTRL_D)
        screen.wait()
    assert said_in(project, latest(project)["id"]) == [f"{word} read @src/deep/harbor_lights.py"]


def test_a_message_typed_while_it_works_is_told_to_the_agent_at_the_end_of_its_turn(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word, later = fresh(), fresh("later")
    model.play(word, call("shell.bash", command="sleep 2; echo slept"), say("never said"))
    model.play(later, say("I take that in as well."))
    with chat() as screen:
        screen.until(READY)
        screen.type(f"{word} please", ENTER)
        screen.until("shell.bash sleep 2", "working ·")
        screen.type(f"{later} also this", ENTER)
        screen.until("queued for the end of the agent's turn", "1 queued")
        screen.until("I take that in as well.", "completed in 2 steps", gone="1 queued")
        screen.type(CTRL_D)
        screen.wait()
    session = latest(project)["id"]
    assert said_in(project, session) == [f"{word} please", f"{later} also this"]
    assert len(project.get(f"/sessions/{session}/runs")["items"]) == 1


def test_a_message_queued_during_the_last_turn_starts_a_run_that_is_shown(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word, later = fresh(), fresh("later")
    model.play(word, {**say("A rather slow answer of some words."), "chunkSize": 4, "latency": 150})
    model.play(later, say("And the answer to that."))
    with chat() as screen:
        screen.until(READY)
        screen.type(f"{word} please", ENTER)
        screen.until("A rather")
        screen.type(f"{later} also this", ENTER)
        screen.until("some words.", "And the answer to that.", gone="1 queued")
        screen.type(CTRL_D)
        screen.wait()
    assert said_in(project, latest(project)["id"]) == [f"{word} please", f"{later} also this"]


def test_escape_with_a_text_interrupts_and_goes_on_with_it(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word, other = fresh(), fresh("other")
    model.play(word, LONG)
    model.play(other, say("Now the other thing."))
    with chat() as screen:
        screen.until(READY)
        screen.type(f"{word} please", ENTER)
        screen.until("A story")
        screen.type(f"{other} rather this")
        screen.until("rather this")
        screen.type(ESCAPE)
        screen.until("cancelled in", "Now the other thing.")
        screen.type(CTRL_D)
        screen.wait()
    runs = project.get(f"/sessions/{latest(project)['id']}/runs")["items"]
    assert [one["status"] for one in runs] == ["completed", "cancelled"]


def test_control_c_clears_what_is_typed_then_cancels_the_run_then_leaves(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word = fresh()
    model.play(word, LONG)
    with chat() as screen:
        screen.until(READY)
        screen.type(f"{word} please", ENTER)
        screen.until("A story")
        screen.type("half a thought")
        screen.until("half a thought")
        screen.type(CTRL_C)
        screen.until(gone="half a thought")
        screen.type(CTRL_C)
        screen.until("Canceling the run.", "cancelled in")
        screen.until(READY)
        screen.type(CTRL_C)
        assert screen.wait() == 0
    assert latest(project)["status"] == "idle"


def test_commands_show_costs_context_changes_and_themselves(
    project: Project, model: ModelServer, chat: Callable[..., Screen]
) -> None:
    word = fresh()
    project.write("a.txt", "one\ntwo\n")
    edit = call("edit.text", path="a.txt", old_string="two", new_string="2")
    model.play(word, call("file.read", path="a.txt"), edit, say("Changed."))
    with chat(lines=60) as screen:
        screen.until(READY)
        screen.type(f"{word} please", ENTER)
        screen.until("Changed.", "completed in 3 steps")
        screen.type("/cost", ENTER)
        screen.until("1 run: ", "tokens in")
        screen.type("/context", ENTER)
        screen.until("threshold: ")
        screen.type("/diff", ENTER)
        screen.until("> /diff\na.txt\n  @@ -1,2 +1,2 @@\n   one\n  -two\n  +2\n")
        screen.type("/model", ENTER)
        screen.until("model: the agent's own")
        screen.type("/nonsense", ENTER)
        screen.until("There is no command /nonsense.")
        screen.type("/hel")
        screen.until("show this list")
        screen.type(TAB, ENTER)
        screen.until("interrupt the agent with a message")
        screen.type("/quit", ENTER)
        assert screen.wait() == 0


def test_a_run_and_the_version_load_nothing_of_the_prompt(project: Project) -> None:
    site = project.root / "site"
    site.mkdir()
    seen = project.root / "modules.json"
    (site / "sitecustomize.py").write_text(LISTING.format(str(seen)), encoding="utf-8")
    with Screen(
        project.daemon,
        "run",
        "hello",
        "--model",
        "scripted",
        cwd=project.root,
        PYTHONPATH=str(site),
    ) as screen:
        assert screen.wait() == 0
    loaded = set(json.loads(seen.read_text(encoding="utf-8")))
    assert "kaged.cli.commands.run" in loaded
    assert not {"prompt_toolkit", "anthropic", "boto3", "google.genai", "openai"} & loaded
    with Screen(project.daemon, "--version", cwd=project.root, PYTHONPATH=str(site)) as screen:
        assert screen.wait() == 0
    loaded = set(json.loads(seen.read_text(encoding="utf-8")))
    assert not {"prompt_toolkit", "rich", "typer"} & loaded


def test_a_chat_in_a_pipe_is_as_plain_as_ever(project: Project, model: ModelServer) -> None:
    word = fresh()
    model.play(word, slowly(say("Some **bold** words.")))
    done = project.daemon.cli("chat", "--new", cwd=project.root, stdin=f"{word} please\n")
    assert done.out == "Some **bold** words.\n"
