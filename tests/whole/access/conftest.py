"""A project whose agent asks when a call is refused, and what waits for a person of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, ended, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import fresh

_names = itertools.count(1)

PROJECT_FILE = """\
version: 1
project: {name}

primary:
  model: default
  system_prompt: You help.   # short
  on_denied: ask
  cage:
    # what the team agreed on
    fs:
      - {{ mode: ro, path: ./src }}  # only to read
    net: {{ allow: [] }}
  tools:
    "file.*": {{ enabled: true }}
  subagents:
    helper:
      model: default
      system_prompt: You help the helper.
      on_denied: ask
      cage: {{ fs: [] }}
      tools: {{ "file.*": {{ enabled: true }} }}
"""


class Asking:
    """A project whose agents ask, and the questions that wait for a person of it."""

    def __init__(self, daemon: Daemon, root: Path, model: ModelServer, text: str = "") -> None:
        self.daemon, self.model = daemon, model
        self.project = Project(root)
        self.project.write(".kaged/project.yaml", text or PROJECT_FILE.format(name=root.name))
        self.project.write("src/a.txt", "the source\n")
        self.project.write("notes/n.txt", "the notes\n")
        self.project.write("notes/other.txt", "the others\n")
        daemon.load(self.project)

    def begin(self, *turns: Any, session: str = "") -> tuple[str, str]:
        """Let the agent begin; returns the session and the run."""
        word = fresh("asking")
        self.model.play(word, *turns, say(f"Done with {word}."))
        place = session or begin(self.project, current=False)
        return place, send(self.project, place, word)

    def waiting(self) -> list[dict[str, Any]]:
        """Return the questions that wait."""
        wanted = f"project_id={self.project.id}&kind=access&state=pending"
        found: list[dict[str, Any]] = self.daemon.get(f"/inbox?{wanted}")["items"]
        return found

    def question(self) -> dict[str, Any]:
        """Wait for the one question; returns it."""
        (one,) = wait_for(self.waiting, "a question")
        return one

    def answer(self, one: dict[str, Any], choice: str) -> None:
        """Answer a question by HTTP."""
        body = {"digest": one["digest"], "answer": {"choice": choice}}
        self.daemon.post(f"/inbox/{one['id']}/answer", body)

    def calls(self, session: str, run: str) -> list[str]:
        """Wait for the end of a run; returns how its calls ended, in order."""
        assert ended(self.project, session, run)["status"] == "completed"
        rows = self.project.get(f"/sessions/{session}/tool-calls?run_id={run}&limit=200")["items"]
        return [str(one["status"]) for one in rows]

    def asked(self, choice: str, *turns: Any, session: str = "") -> tuple[str, list[str]]:
        """Let the agent begin, answer its one question; returns the session and the calls' ends."""
        place, run = self.begin(*turns, session=session)
        self.answer(self.question(), choice)
        return place, self.calls(place, run)

    def unasked(self, *turns: Any, session: str = "") -> list[str]:
        """Let the agent do something that must not ask; returns how its calls ended."""
        place, run = self.begin(*turns, session=session)
        found = self.calls(place, run)
        assert self.waiting() == []
        return found


def reads(path: str) -> dict[str, Any]:
    """Return a turn that reads a file."""
    return call("file.read", path=path)


@pytest.fixture
def asking(daemon: Daemon, tmp_path: Path, model: ModelServer) -> Asking:
    """Return a loaded project whose agents ask."""
    return Asking(daemon, tmp_path / f"ask{next(_names)}", model)


@pytest.fixture
def asking_on(tmp_path: Path, model: ModelServer) -> Callable[..., Asking]:
    """Return a maker of such projects: on a daemon, with the text of its project file."""
    return lambda daemon, text="": Asking(daemon, tmp_path / f"ask{next(_names)}", model, text)
