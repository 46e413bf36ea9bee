"""A daemon killed without warning at each step of a run: nothing is lost and nothing runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
LINE = "echo once >> did.txt"


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
        self.process = start_daemon(self.home, env={"KAGED_SCRIPT": str(self.script)})
        assert self.process.said.get("ready"), (self.process.said, self.process.log())
        if not self.project:
            self.project = self.ask("POST", "/projects", {"root": str(self.root)})["id"]

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

    def did(self) -> int:
        found = self.root / "did.txt"
        return len(found.read_text(encoding="utf-8").splitlines()) if found.exists() else 0


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    made = Victim(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()


def bash(command: str) -> dict[str, Any]:
    return {"tool": "shell.bash", "with": {"command": command}}


def test_killed_while_the_model_thinks(victim: Victim) -> None:
    """The message was acknowledged, so it is there; the run can be gone on with."""
    victim.play({"say": "Here I am.", "delay_s": 3600})
    victim.start()
    session = victim.session()
    victim.ask("POST", victim.on(session, "/message"), {"text": "Hello?"})
    victim.kill()
    victim.play({"say": "Here I am."})
    victim.start()

    assert victim.said(session) == ["user: Hello?"]
    assert victim.run(session)["status"] == "interrupted"
    victim.ask("POST", victim.on(session, "/resume"))
    victim.until(lambda: victim.run(session)["status"] == "completed")
    assert victim.said(session) == ["user: Hello?", "assistant: Here I am."]


@requirement("AT-SESS-14")
def test_killed_during_a_tool_call(victim: Victim) -> None:
    """The command had begun and is not run again; the agent is told that it was cut off."""
    turns = [
        {"say": "I do it.", "call": [bash(f"{LINE}; sleep 600")]},
        {"say": "It was cut off.", "when": {"failed": True}},
    ]
    victim.play(*turns)
    victim.start()
    session = victim.session()
    victim.ask("POST", victim.on(session, "/message"), {"text": "Do it"})
    victim.until(lambda: victim.did() == 1)
    before = victim.entries(session)
    victim.kill()
    victim.start()

    after = victim.entries(session)
    assert after[: len(before)] == before
    assert victim.run(session)["status"] == "interrupted"
    calls = victim.ask("GET", victim.on(session, "/tool-calls"))["items"]
    assert [one["status"] for one in calls] == ["interrupted"]
    victim.ask("POST", victim.on(session, "/resume"))
    victim.until(lambda: victim.run(session)["status"] == "completed")
    said = victim.said(session)
    assert said[-1] == "assistant: It was cut off."
    assert any("[interrupted]" in one for one in said)
    assert victim.did() == 1


def test_killed_between_two_steps(victim: Victim) -> None:
    """What the tool answered is there when the run goes on."""
    victim.play(
        {"say": "I do it.", "call": [bash(f"{LINE}; echo made-it")]},
        {"say": "Done.", "delay_s": 3600},
    )
    victim.start()
    session = victim.session()
    victim.ask("POST", victim.on(session, "/message"), {"text": "Do it"})
    victim.until(lambda: any("made-it" in one for one in victim.said(session)[2:]))
    victim.kill()
    victim.play({"say": "I do it.", "call": [bash(LINE)]}, {"say": "Done."})
    victim.start()

    victim.ask("POST", victim.on(session, "/resume"))
    victim.until(lambda: victim.run(session)["status"] == "completed")
    assert victim.said(session)[-1] == "assistant: Done."
    assert victim.did() == 1


@requirement("AT-ASK-11")
def test_killed_while_a_question_waits_and_after_its_answer(victim: Victim) -> None:
    """The question outlives the first daemon, the answer the second."""
    ask = {"questions": [{"id": "q", "title": "Which?", "options": ["a", "b"]}]}
    victim.play({"call": [{"tool": "kaged.ask", "with": ask}]}, {"say": "Then b.", "delay_s": 3600})
    victim.start()
    session = victim.session()
    victim.ask("POST", victim.on(session, "/message"), {"text": "Choose"})
    inbox = f"/projects/{victim.project}/interactions"
    victim.until(lambda: victim.run(session)["status"] == "paused")
    victim.kill()
    victim.start()
    (waiting,) = victim.ask("GET", f"{inbox}?status=pending")["items"]
    assert victim.ask("GET", victim.on(session))["status"] == "checkpoint"
    victim.ask("POST", f"{inbox}/{waiting['request_id']}/answer", {"answers": {"q": "b"}})
    victim.until(lambda: victim.run(session)["status"] == "running")
    victim.until(lambda: any('"q":"b"' in one for one in victim.said(session)))
    victim.kill()
    victim.play({"call": [{"tool": "kaged.ask", "with": ask}]}, {"say": "Then b."})
    victim.start()

    assert any('"q":"b"' in one for one in victim.said(session))
    victim.ask("POST", victim.on(session, "/resume"))
    victim.until(lambda: victim.run(session)["status"] == "completed")
    assert victim.said(session)[-1] == "assistant: Then b."
    assert sum("answers" in one for one in victim.said(session)) == 1
