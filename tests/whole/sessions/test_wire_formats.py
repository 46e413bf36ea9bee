"""A model server that others wrote, asked by `kaged run` in OpenAI's and Anthropic's words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import (
    PROTOCOLS,
    ModelServer,
    call,
    calls,
    cut_off,
    refuse,
    say,
    slowly,
)
from whole.harness.project import Project
from whole.harness.talk import fresh

TEXT = "The quick brown fox, “Löwe”, jumps over the lazy dog, twice."


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with one model for each protocol, named after it."""
    local = "".join(model.local_toml(one, one) for one in PROTOCOLS)
    made = Daemon(module_path / "h", local=local + model.local_toml())
    made.start()
    yield made
    made.close()


def run(project: Project, alias: str, word: str, code: int = 0) -> list[dict[str, Any]]:
    """Run a task with `kaged run --json`; returns its events, the result last."""
    words = ("run", f"{word} please", "--model", alias, "--json")
    done = project.daemon.cli(*words, cwd=project.root, code=code)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert events[-1]["event"] == "run.result"
    return events


def of(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the events of a name."""
    return [one for one in events if one["event"] == name]


@pytest.mark.parametrize("alias", PROTOCOLS)
def test_text_arrives_piece_by_piece_and_as_a_whole(
    project: Project, model: ModelServer, alias: str
) -> None:
    word = fresh()
    model.play(word, slowly(say(TEXT)))
    events = run(project, alias, word)
    pieces = [one["text"] for one in of(events, "text.delta")]
    assert len(pieces) > 3
    assert "".join(pieces) == TEXT
    assert (events[-1]["status"], events[-1]["text"]) == ("completed", TEXT)


@pytest.mark.parametrize("alias", PROTOCOLS)
def test_two_tools_are_called_in_one_turn_and_a_third_fails_in_the_next(
    project: Project, model: ModelServer, alias: str
) -> None:
    word = fresh()
    project.write("a.txt", "alpha-content\n")
    wanted = (("file.read", {"path": "a.txt"}), ("file.create", {"path": "b.txt", "content": "b"}))
    model.play(word, slowly(calls(*wanted, text="Both.")), call("file.read", path="c"), say("Done"))
    assert run(project, alias, word)[-1]["text"] == "Done"
    assert project.read("b.txt") == "b"
    first, second, third = model.asked(word)
    assert "alpha-content" not in json.dumps(first)
    assert "alpha-content" in json.dumps(second)
    assert "file_not_found" in json.dumps(third)
    made = project.daemon.audit("tool.called", project_id=project.id)
    assert [one["data"]["tool_name"] for one in made] == ["file.read", "file.create", "file.read"]


@pytest.mark.parametrize("alias", PROTOCOLS)
def test_an_answer_that_is_cut_off_is_asked_for_again_and_counts_once(
    project: Project, model: ModelServer, alias: str
) -> None:
    word = fresh()
    model.play(word, cut_off(say(TEXT)), say(TEXT))
    events = run(project, alias, word)
    [retried] = of(events, "model.retried")
    assert "model_unavailable" in str(retried)
    assert events[-1]["text"] == TEXT


@pytest.mark.parametrize("alias", PROTOCOLS)
def test_half_a_tool_call_calls_nothing(project: Project, model: ModelServer, alias: str) -> None:
    word = fresh()
    turn = call("file.create", path="b.txt", content="written once, and in full")
    model.play(word, cut_off(turn), turn, say("Done."))
    assert len(of(run(project, alias, word), "model.retried")) == 1
    assert project.read("b.txt") == "written once, and in full"
    assert len(project.daemon.audit("tool.called", project_id=project.id)) == 1


@pytest.mark.parametrize("alias", PROTOCOLS)
def test_an_error_of_the_vendor_ends_the_run_with_its_code_and_the_next_run_works(
    project: Project, model: ModelServer, alias: str
) -> None:
    word = fresh()
    model.play(word, refuse(401, "invalid key sk-test", type="authentication_error"), say("Now."))
    failed = run(project, alias, word, code=1)[-1]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "model_refused")
    assert "sk-test" not in json.dumps(failed)
    assert run(project, alias, word)[-1]["text"] == "Now."
