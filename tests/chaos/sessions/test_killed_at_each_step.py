"""A daemon killed without warning at each step of a run: nothing is lost and nothing runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fakes.running_daemon import WAIT_S, DaemonProcess, make_project, start_daemon
from requirements import requirement

PROJECT = """
version: 1
project: sample
primary:
  model: scripted
  system_prompt: You help.
  tools: {shell.bash: {enabled: true}}
"""
LINE = "echo once >> did-%s.txt"


class Victim:
    """A daemon with a scripted model, killed and started again on the same home."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "h"
        self.root = make_project(tmp_path / "project", PROJECT)
        self.script = tmp_path / "script.yaml"
        self.process: DaemonProcess | None = None
        self.project = ""

    def play(self, *turns: dict[str, Any]) -> None:
        """Write down what the model says."""
        self.script.write_text(yaml.safe_dump({"turns": list(turns)}), encoding="utf-8")

    def start(self) -> None:
        self.process = start_daemon(self.home, env={"KAGED_SCRIPT": str(self.script)}, forked=True)
        assert self.process.said.get("ready"), (self.process.said, self.process.log())
        if not self.project:
            self.project = self.ask("POST", "/projects", {"root": str(self.root), "trust": True})[
                "id"
            ]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def ask(self, method: str, path: str, body: Any = None, expect: int = 0) -> Any:
        assert self.process is not None
        with self.process.client() as client:
            answer: httpx.Response = client.request(method, path, json=body)
        assert answer.status_code == expect or (not expect and answer.is_success), answer.text
        return answer.json()

    def on(self, session: str, rest: str = "") -> str:
        return f"/projects/{self.project}/sessions/{session}{rest}"

    def session(self) -> str:
        made = self.ask("POST", f"/projects/{self.project}/sessions", {})
        return str(made["id"])

    def entries(self, session: str) -> list[dict[str, Any]]:
        return self.ask("GET", self.on(session, "/entries"))["items"]

    def said(self, session: str) -> list[str]:
        """Return the messages of a session in short."""
        lines: list[str] = []
        for one in self.entries(session):
            for block in one["content"].get("content") or ():
                text = block.get("text") or block.get("output") or block.get("name")
                lines.append(f"{one['role']}: {text}")
        return lines

    def run(self, session: str) -> dict[str, Any]:
        return self.ask("GET", self.on(session, "/runs"))["items"][0]

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not what():
            assert time.monotonic() < deadline, self.process and self.process.log()[-3000:]
            time.sleep(0.05)

    def did(self, what: str) -> int:
        found = self.root / f"did-{what}.txt"
        return len(found.read_text(encoding="utf-8").splitlines()) if found.exists() else 0


def bash(command: str) -> dict[str, Any]:
    return {"tool": "shell.bash", "with": {"command": command}}


ASKED = {"questions": [{"id": "q", "title": "Which?", "options": ["a", "b"]}]}
THINKING, CALLING, BETWEEN, ASKING = "Hello?", "Begin it", "Do it", "Choose"


def turns(wait_s: int) -> list[dict[str, Any]]:
    """Return what the model says in each session; what is waited for comes after so long."""
    return [
        {"when": {"user": THINKING}, "say": "Here I am.", "delay_s": wait_s},
        {"when": {"user": CALLING}, "say": "I begin.", "call": [bash(f"{LINE % 'a'}; sleep 600")]},
        {"when": {"failed": True}, "say": "It was cut off."},
        {"when": {"user": BETWEEN}, "say": "I do it.", "call": [bash(f"{LINE % 'b'}; echo done")]},
        {"say": "Done.", "delay_s": wait_s},
        {"when": {"user": ASKING}, "call": [{"tool": "kaged.ask", "with": ASKED}]},
        {"say": "Then b.", "delay_s": wait_s},
    ]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session shows at one time."""

    entries: list[dict[str, Any]]
    said: list[str]
    status: str
    run: str
    calls: list[str]


@dataclass
class Lives:
    """Four sessions through two kills: the second comes when the question has its answer."""

    victim: Victim
    sessions: dict[str, str] = field(default_factory=dict[str, str])
    waiting: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict[str, dict[str, Seen]])

    def look(self, when: str) -> None:
        """Keep what all sessions show now."""
        self.seen[when] = {words: self._seen(one) for words, one in self.sessions.items()}

    def _seen(self, session: str) -> Seen:
        calls = self.victim.ask("GET", self.victim.on(session, "/tool-calls"))["items"]
        return Seen(
            self.victim.entries(session),
            self.victim.said(session),
            self.victim.ask("GET", self.victim.on(session))["status"],
            self.victim.run(session)["status"],
            [one["status"] for one in calls],
        )

    def first(self) -> None:
        """Bring each session to its step."""
        victim = self.victim
        victim.play(*turns(3600))
        victim.start()
        for words in (THINKING, CALLING, BETWEEN, ASKING):
            self.sessions[words] = victim.session()
            victim.ask("POST", victim.on(self.sessions[words], "/message"), {"text": words})
        victim.until(lambda: victim.did("a") == 1)
        between = self.sessions[BETWEEN]
        victim.until(lambda: any("tool" in one for one in victim.said(between)[2:]))
        victim.until(lambda: victim.run(self.sessions[ASKING])["status"] == "paused")
        self.look("before")

    def second(self) -> None:
        """Answer the question that outlived the first daemon."""
        victim, asking = self.victim, self.sessions[ASKING]
        victim.start()
        self.look("after one kill")
        inbox = f"/projects/{victim.project}/interactions"
        self.waiting = victim.ask("GET", f"{inbox}?status=pending")["items"]
        answer = f"{inbox}/{self.waiting[0]['request_id']}/answer"
        victim.ask("POST", answer, {"answers": {"q": "b"}})
        victim.until(lambda: any('"q":"b"' in one for one in victim.said(asking)))
        victim.until(lambda: victim.run(asking)["status"] == "running")

    def third(self) -> None:
        """Go on with every session to its end."""
        victim = self.victim
        victim.play(*turns(0))
        victim.start()
        self.look("after two kills")
        for one in self.sessions.values():
            victim.ask("POST", victim.on(one, "/resume"))
        for one in self.sessions.values():
            victim.until(lambda one=one: victim.run(one)["status"] == "completed")
        self.look("at the end")


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """Yield four sessions that have come to their end in spite of two kills."""
    made = Lives(Victim(tmp_path_factory.mktemp("v")))
    try:
        made.first()
        made.victim.kill()
        made.second()
        made.victim.kill()
        made.third()
        yield made
    finally:
        made.victim.kill()


@pytest.mark.parametrize("words", [THINKING, CALLING, BETWEEN, ASKING])
def test_nothing_that_was_there_before_a_kill_is_lost_or_changed(lives: Lives, words: str) -> None:
    for earlier, later in pairwise(lives.seen.values()):
        kept = earlier[words].entries
        assert later[words].entries[: len(kept)] == kept


def test_killed_while_the_model_thinks(lives: Lives) -> None:
    """The message was acknowledged, so it is there; the run can be gone on with."""
    for when in ("after one kill", "after two kills"):
        seen = lives.seen[when][THINKING]
        assert (seen.said, seen.run) == ([f"user: {THINKING}"], "interrupted")
    end = lives.seen["at the end"][THINKING]
    assert end.said == [f"user: {THINKING}", "assistant: Here I am."]


@requirement("AT-SESS-14")
def test_killed_during_a_tool_call(lives: Lives) -> None:
    """The command had begun and is not run again; the agent is told that it was cut off."""
    seen = lives.seen["after one kill"][CALLING]
    assert (seen.run, seen.calls) == ("interrupted", ["interrupted"])
    said = lives.seen["at the end"][CALLING].said
    assert said[-1] == "assistant: It was cut off."
    assert any("[interrupted]" in one for one in said)
    assert lives.victim.did("a") == 1


def test_killed_between_two_steps(lives: Lives) -> None:
    """What the tool answered is there when the run goes on."""
    before, end = (lives.seen[when][BETWEEN] for when in ("before", "at the end"))
    assert lives.seen["after one kill"][BETWEEN].run == "interrupted"
    assert any("done" in one for one in before.said[2:])
    assert end.said == [*before.said, "assistant: Done."]
    assert lives.victim.did("b") == 1


@requirement("AT-ASK-11")
def test_killed_while_a_question_waits_and_after_its_answer(lives: Lives) -> None:
    """The question outlives the first daemon, the answer the second."""
    assert len(lives.waiting) == 1
    assert lives.seen["after one kill"][ASKING].status == "checkpoint"
    assert any('"q":"b"' in one for one in lives.seen["after two kills"][ASKING].said)
    end = lives.seen["at the end"][ASKING].said
    assert end[-1] == "assistant: Then b."
    assert sum("answers" in one for one in end) == 1
