"""`kaged run`, `chat` and `answer` with a real daemon and the scripted model."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.running_daemon import KAGED, environment, kaged, make_home, start_daemon
from requirements import requirement

PROJECT = """\
version: 1
project: { name: Boats }
primary:
  model: smart-fast
  system_prompt: You fold boats.
  tools:
    "file.*": { enabled: true }
    "kaged.*": { enabled: true }
"""
SCRIPT = """\
turns:
  - when: { user: log }
    say: I read it.
    call: [{ tool: file.read, with: { path: log.txt } }, { tool: file.write, with: { path: /x } }]
  - say: Calm.
  - when: { user: ask }
    say: One question.
    call:
      - tool: kaged.ask
        with: { questions: [{ id: colour, title: "Which colour?", options: [red, blue] }] }
  - say: Thank you.
  - when: { user: checkpoint }
    call: [{ tool: kaged.checkpoint, with: { message: May I? } }]
  - say: I may.
  - when: { user: refuse }
    error: refused
  - when: { user: hello }
    say: Hello.
  - when: { user: loop }
    call: [{ tool: file.read, with: { path: log.txt } }]
  - call: [{ tool: file.read, with: { path: log.txt } }]
"""


class Operator:
    """Commands in the folder of one project."""

    def __init__(self, folder: Path) -> None:
        self.home = make_home(folder / "h")
        self.root = folder / "boats"
        (self.root / ".kaged").mkdir(parents=True)
        (self.root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
        (self.root / "log.txt").write_text("calm\n", encoding="utf-8")
        (self.home / "script.yaml").write_text(SCRIPT, encoding="utf-8")
        self.local('[models.smart-fast]\nmodel = "scripted:script.yaml"\n')

    def local(self, text: str) -> None:
        path = self.home / "local.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)

    def start(self) -> None:
        self.daemon = start_daemon(self.home, config=None, forked=True)
        assert self.daemon.said["ready"], self.daemon.log()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return kaged(self.home, *arguments, cwd=self.root)

    def types(self, *lines: str, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*KAGED, *command],
            env=environment(self.home),
            cwd=self.root,
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )


@pytest.fixture
def operator() -> Iterator[Operator]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        made = Operator(Path(folder).resolve())
        made.start()
        try:
            assert made.run("project", "load", "--trust").returncode == 0
            yield made
        finally:
            made.daemon.stop()


@pytest.mark.timeout(240)
def test_run_shows_words_on_stdout_and_the_rest_beside_them(operator: Operator) -> None:
    done = operator.run("run", "the log please")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "I read it.\nCalm.\n"
    assert "ok        file.read log.txt" in done.stderr
    assert "failed    file.write" in done.stderr or "denied    file.write" in done.stderr
    assert "completed in 2 steps" in done.stderr

    # Questions: shown, listed, answered by flags, and watched to the end.
    asked = operator.run("run", "ask me")
    assert asked.returncode == 9
    assert "waits for your answer: Which colour?" in asked.stderr
    assert operator.run("answer").returncode == 9
    answered = operator.run("answer", "--set", "colour=red", "--follow")
    assert (answered.returncode, answered.stdout) == (0, "Thank you.\n")
    paused = operator.run("run", "a checkpoint")
    assert paused.returncode == 9
    done = operator.run("answer", "--approve", "--follow")
    assert (done.returncode, done.stdout) == (0, "I may.\n")
    assert operator.run("answer").stderr == "No questions are pending.\n"

    # What goes wrong has an exit code and a reason.
    failed = operator.run("run", "refuse me")
    assert failed.returncode == 1
    assert "[model_refused]" in failed.stderr
    endless = operator.run("run", "a loop", "--max-steps", "1")
    assert endless.returncode == 1
    assert "[step_limit_reached]" in endless.stderr
    nobody = operator.run("run", "hello", "--agent", "primary.subagents.nobody")
    assert nobody.returncode == 3, nobody.stderr


@requirement("AT-DSL-20")
@pytest.mark.timeout(120)
def test_an_alias_is_resolved_through_the_operators_models_when_a_session_starts(
    operator: Operator,
) -> None:
    assert operator.run("run", "hello").stdout == "Hello.\n"
    unknown = operator.run("run", "hello", "--model", "clever")
    assert unknown.returncode != 0
    assert "[model_unknown]" in unknown.stderr
    assert "[models.clever]" in unknown.stderr
    # The project's own alias, once the operator no longer has it.
    operator.daemon.stop()
    operator.local("")
    operator.start()
    gone = operator.run("run", "hello")
    assert "[model_unknown]" in gone.stderr
    assert "[models.smart-fast]" in gone.stderr


@pytest.mark.timeout(120)
def test_at_a_terminal_questions_are_asked_and_the_agent_goes_on(operator: Operator) -> None:
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [*KAGED, "run", "ask me"],
        env={**environment(operator.home), "TERM": "xterm"},
        cwd=operator.root,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = ""
    answered = False
    with os.fdopen(ours, "r+b", buffering=0) as screen:
        while True:
            ready, _, _ = select.select([screen], [], [], 60)
            assert ready, seen
            try:
                piece = screen.read(65_536)
            except OSError:  # the other side has closed its end
                break
            if not piece:
                break
            seen += piece.decode("utf-8", "replace")
            if not answered and "colour> " in seen:
                answered = True
                screen.write(b"2\n")
    assert running.wait(60) == 0, seen
    assert "Which colour?" in seen
    assert "2. blue" in seen
    assert "\x1b[32m✓ " in seen
    assert "Thank you." in seen
    shown = operator.run("inbox", "list", "--all", "--json").stdout
    assert json.loads(shown)["items"][0]["answer"] is not None
    assert "blue" in shown


@pytest.mark.timeout(240)
def test_chat_takes_messages_and_commands_and_follows_its_session(operator: Operator) -> None:
    done = operator.types(
        "hello",
        "/fork",
        "/sessions",
        "/compact",
        "/model nobody",
        "hello",
        "/model",
        "/tools",
        "/undo",
        "/what",
        "/help",
        "/quit",
        "never said",
        command=("chat", "--new"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello.\n")
    assert "file.read" in done.stdout
    assert "/fork [ENTRY]" in done.stdout
    assert "[model_unknown]" in done.stderr
    assert "There is no command /what" in done.stderr
    assert done.stderr.count("session ses_") >= 2  # the fork is another session
    sessions = json.loads(operator.run("session", "list", "--json").stdout)["items"]
    assert len(sessions) == 2
    assert sum(one["current"] for one in sessions) == 1
    assert next(one for one in sessions if one["current"])["parent_session"] is not None
