"""A whole session over real HTTP: many agents, a cage, a plugin, a compaction, a question, kills.

A server that speaks as OpenAI does drives a daemon in a process of its own; the operator uses the
commands. The daemon is killed twice in the middle, and nothing is lost or done twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.openai_server import Answers, Asked, OpenAIServer, Reply, playing
from fakes.running_daemon import KAGED, DaemonProcess, environment, kaged, make_home, start_daemon
from kaged.models.script import ModelScript

ROOT = Path(__file__).parents[3]
KEY = "sk-test-0123456789abcdef0123456789"
LOOKOUT = "primary.subagents.lookout"
WAIT_S = 60

PROJECT = """\
version: 1
project: { name: Boats }
primary:
  model: default
  system_prompt: You fold boats.
  compaction: { strategy: summarize, threshold: 5000 }
  tools:
    "file.*": { enabled: true }
    "edit.*": { enabled: true }
    "kaged.*": { enabled: true }
    "memory-markdown.*": { enabled: true }
  plugins:
    memory: { package: memory-markdown }
  subagents:
    lookout:
      model: default
      description: Looks at charts.
      system_prompt: You look at charts.
      cage: { fs: [{ mode: ro, path: charts }] }
      tools:
        "file.read": { enabled: true }
"""

SCRIPT = """\
turns:
  - when: { user: sail }
    think: The log first.
    say: I look around.
    fail:
      - { as: rate_limited, retry_after_s: 0.05 }
      - { as: cut, after: I look }
    call:
      - { tool: file.read, with: { path: log.txt } }
      - { tool: agent-lookout, with: { message: Where are the rocks? } }
  - say: I note that down.
    call: [{ tool: memory-markdown.retain, with: { content: The rocks are north of the pier. } }]
  - say: I read the log once more.
    call: [{ tool: file.read, with: { path: log.txt } }, { tool: no.such.tool, with: {} }]
  - say: And the long one.
    call: [{ tool: file.read, raw: "{not json" }, { tool: file.read, with: { path: long.txt } }]
  - say: I write the log.
    call:
      - tool: edit.text
        with: { path: log.txt, old_string: "day one", new_string: "day one: rocks north" }
  - say: One question.
    call:
      - tool: kaged.ask
        with: { questions: [{ id: colour, title: "Which colour?", options: [red, blue] }] }
  - when: { tool: kaged.ask }
    pace_s: 0.05
    say: >-
      The boat becomes red as you wish, and because this answer comes one word at a time there is
      room enough to be cut off somewhere in the middle of it, which is what happens once.

  - agent: primary.subagents.lookout
    say: I look.
    call:
      - { tool: file.read, with: { path: charts/harbour.txt } }
      - { tool: file.read, with: { path: secrets.txt } }
  - agent: primary.subagents.lookout
    say: Rocks north of the pier. The secrets are not for me.

  - when: { system: You sum up }
    repeat: true
    say: They sail; rocks are north of the pier; the log was read.
  - when: { user: again }
    say: I remember.
"""


class Sea:
    """The daemon, the server and the operator's commands."""

    def __init__(self, folder: Path, server: OpenAIServer) -> None:
        self.home = make_home(folder / "h")
        self.root = folder / "boats"
        self.server = server
        self.answered = threading.Event()  # the model was told the answer, and speaks
        self.daemon: DaemonProcess | None = None

    def prepare(self) -> None:
        (self.root / ".kaged").mkdir(parents=True)
        (self.root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
        (self.root / "charts").mkdir()
        self.file("charts/harbour.txt").write_text("rocks north of the pier\n", encoding="utf-8")
        self.file("secrets.txt").write_text("under the mat\n", encoding="utf-8")
        self.file("log.txt").write_text("day one\n" + "wind\n" * 200, encoding="utf-8")
        self.file("long.txt").write_text("water water everywhere\n" * 800, encoding="utf-8")
        local = self.home / "local.toml"
        local.write_text(
            f'[models.default]\nmodel = "acme:tiny"\nbase_url = "{self.server.url}"\n'
            'api_key = "${SEA_KEY}"\n',
            encoding="utf-8",
        )
        local.chmod(0o600)

    def file(self, name: str) -> Path:
        return self.root / name

    def start(self) -> None:
        self.daemon = start_daemon(self.home, config=None, env={"SEA_KEY": KEY}, forked=True)
        assert self.daemon.said["ready"], self.daemon.said

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()

    def run(self, *arguments: str, expect: int = 0) -> str:
        done = kaged(self.home, *arguments, cwd=self.root)
        assert done.returncode == expect, (done.stdout, done.stderr)
        return done.stdout

    def lines(self, *arguments: str, expect: int = 0) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self.run(*arguments, expect=expect).splitlines()]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def get(self, path: str) -> Any:
        """Ask the daemon about the project."""
        assert self.daemon is not None
        with self.daemon.client() as client:
            project = client.get("/projects").json()["items"][0]["id"]
            return client.get(f"/projects/{project}{path}").json()

    def answers(self, inner: Answers) -> Answers:
        def answer(asked: Asked) -> Reply:
            reply = inner(asked)
            last = asked.messages[-1]
            if last["role"] == "tool" and "colour" in last["content"]:
                self.answered.set()
            return reply

        return answer


@pytest.fixture
def sea() -> Iterator[Sea]:
    script = ModelScript.parse(SCRIPT, "whole.yaml")
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        plays = playing(script, {"You look at charts": LOOKOUT})
        with OpenAIServer(plays) as server:
            made = Sea(Path(folder).resolve(), server)
            server.answers = made.answers(plays)
            made.prepare()
            try:
                yield made
            finally:
                kaged(made.home, "daemon", "stop", "--force")
                if made.daemon is not None and made.daemon.process.poll() is None:
                    made.daemon.kill()


@pytest.mark.timeout(300)
def test_a_whole_session_with_cage_plugin_compaction_question_and_two_kills(sea: Sea) -> None:
    sea.start()
    sea.run("plugin", "install", str(ROOT / "plugins" / "examples" / "memory-markdown"), "--yes")
    sea.run("project", "load", "--trust")
    sea.run("plugin", "enable", "memory-markdown")

    # The first run: it works, is refused, remembers, is compacted, and asks.
    events = sea.lines("run", "sail to the pier", "--json", expect=9)
    result = events[-1]
    session = result["session_id"]
    assert result["status"] == "paused"
    finished = [one for one in events if one["event"] == "tool.finished"]
    refused = [one for one in finished if one["status"] == "denied"]
    assert [one["caller"] for one in refused] == [LOOKOUT]
    assert any(one["tool_name"] == "memory-markdown.retain" for one in finished), finished
    retried = [one["reason"].split(":")[0] for one in events if one["event"] == "model.retried"]
    assert retried == ["model_rate_limited", "model_unavailable"]
    assert "compaction.finished" in {one["event"] for one in events}
    assert sea.file("log.txt").read_text(encoding="utf-8").count("rocks north") == 1
    # The lookout never had the secret, and so neither did any model.
    assert "under the mat" not in json.dumps([one.body for one in sea.server.asked])

    # Killed while it waits; the question is still there.
    sea.kill()
    sea.start()
    waiting = sea.get("/interactions?status=pending")["items"]
    assert [one["session_id"] for one in waiting] == [session]

    # Answered, and killed again while the model is in the middle of its words.
    following = subprocess.Popen(
        [*KAGED, "answer", "--set", "colour=red", "--follow", "--json"],
        env=environment(sea.home),
        cwd=sea.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert sea.answered.wait(WAIT_S)
    sea.kill()
    sea.start()
    told, complaint = following.communicate(timeout=WAIT_S)
    assert following.returncode == 5, (told, complaint)
    assert json.loads(told.splitlines()[-1])["status"] == "interrupted"

    # It goes on where it was: the same turn is asked for again, and nothing else.
    edits = _calls(sea, session, "edit.text")
    sea.run("session", "resume", session)
    _wait_until_idle(sea, session)
    shown = sea.get(f"/sessions/{session}/entries")
    assert _calls(sea, session, "edit.text") == edits
    assert sea.file("log.txt").read_text(encoding="utf-8").count("rocks north") == 1
    assert "The boat becomes red" in json.dumps(shown)
    assert _statuses(sea, session) == ["completed", "interrupted", "paused"]
    summed = [one for one in sea.server.asked if "You sum up" in json.dumps(one.messages[0])]
    assert summed, "no summary was asked for"
    assert not any(one.tools for one in summed)

    # Another session begins with what the plugin remembers.
    again = sea.lines("run", "again", "--json")[-1]
    assert again["text"] == "I remember."
    assert "The rocks are north of the pier." in json.dumps(sea.server.asked[-1].messages[0])

    # What the operator sees afterwards.
    audit = sea.json("audit", "query", "--lines", "1000")
    names = {one["event"] for one in audit}
    assert {"compaction.completed", "tool.called", "plugin.spawned"} <= names
    sea.run("audit", "verify")
    _require_no_key(sea)


@pytest.mark.timeout(120)
def test_ctrl_c_cancels_the_run_and_says_so(sea: Sea) -> None:
    sea.start()
    sea.run("project", "load", "--trust")
    slow = ModelScript.parse(
        "turns: [{ say: one two three four five six, pace_s: 5 }]", "slow.yaml"
    )
    plays = playing(slow)
    begun = threading.Event()

    def answer(asked: Asked) -> Reply:
        begun.set()
        return plays(asked)

    sea.server.answers = answer
    running = subprocess.Popen(
        [*KAGED, "run", "take your time", "--json"],
        env=environment(sea.home),
        cwd=sea.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert begun.wait(WAIT_S)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=WAIT_S)
    assert running.returncode == 130, (out, err)
    result = json.loads(out.splitlines()[-1])
    assert result["status"] == "cancelled"
    assert sea.get("/sessions")["items"][0]["status"] == "idle"
    assert sea.server.idle.wait(WAIT_S)  # the vendor is not left talking to nobody


def _calls(sea: Sea, session: str, tool: str) -> list[str]:
    found = sea.get(f"/sessions/{session}/tool-calls")["items"]
    return [one["request_id"] for one in found if one["tool_name"] == tool]


def _statuses(sea: Sea, session: str) -> list[str]:
    """Return how the runs of a session ended, newest first."""
    return [one["status"] for one in sea.get(f"/sessions/{session}/runs")["items"]]


def _wait_until_idle(sea: Sea, session: str) -> None:
    pause = threading.Event()
    for _ in range(WAIT_S * 10):
        found = sea.get(f"/sessions/{session}")
        if found["status"] == "idle" and found["active_run"] is None:
            return
        pause.wait(0.1)
    raise AssertionError(f"{session} does not come to rest")


def _require_no_key(sea: Sea) -> None:
    """Look through everything the daemon wrote for the key."""
    for folder, _, files in os.walk(sea.home):
        for name in files:
            path = Path(folder) / name
            if path.is_file():
                assert KEY.encode() not in path.read_bytes(), path
    assert sea.daemon is not None
    assert KEY not in sea.daemon.log()
