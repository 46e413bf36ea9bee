"""Plugins that listen to sessions, and a conversation that can be filled and compacted."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import Ear, heard
from whole.harness.project import Project

COMPACTOR = Path(__file__).parents[2] / "guests" / "compactor_plugin.py"
START, IDLE, PRE, POST = HOOKS = (
    "on_session_start",
    "on_session_idle",
    "pre_compact",
    "post_compact",
)
NULL: Sequence[Mapping[str, Any]] = [{"result": None}]
_words = itertools.count(1)


def result(value: Any) -> list[dict[str, Any]]:
    """Return what a stub does to answer with a value."""
    return [{"result": value}]


class Listener:
    """A running stub that answers hooks, and what it heard."""

    def __init__(
        self,
        daemon: Daemon,
        root: Path,
        name: str,
        hooks: Mapping[str, Sequence[Mapping[str, Any]]],
        **manifest: Any,
    ) -> None:
        self.folder = PluginFolder(daemon, root / name, name=name)
        on = {f"kaged.hook.{hook}": list(acts) for hook, acts in hooks.items()}
        declared = {"hooks": list(hooks), "methods": ["a.b"], **manifest}
        behaviour = {"on": {"a.b": [{"echo": True}], **on}}
        self.ear: Ear = heard(self.folder, behaviour, **declared)
        state = self.folder.run()
        assert state["state"] == "running", state

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    def heard(self, hook: str) -> list[dict[str, Any]]:
        """Return the params of each fire of a hook."""
        return self.ear.params(f"kaged.hook.{hook}")

    def audit(self, *events: str) -> list[dict[str, Any]]:
        """Return its audit rows."""
        return self.folder.audit(*events)


class CompactingPlugin:
    """A running compactor (`tests/guests/compactor_plugin.py`) that answers as `how` says."""

    def __init__(self, daemon: Daemon, root: Path, name: str, how: str, **manifest: Any) -> None:
        ear = Ear(root / f"{name}-ear")
        declared: dict[str, Any] = {"roles": ["compactor"], "hooks": [PRE], **manifest}
        declared["capabilities"] = [ear.capability]
        self.folder = PluginFolder(daemon, root / name, name=name, methods=[], **declared)
        self.ear = ear
        shutil.copy(COMPACTOR, self.folder.root / "main.py")
        told = {"name": name, "how": how, "log": str(ear.path)}
        (self.folder.root / "behaviour.json").write_text(json.dumps(told), encoding="utf-8")
        state = self.folder.run()
        assert state["state"] == "running", state

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    def asked(self) -> list[dict[str, Any]]:
        """Return the params of each pre_compact that it got as compactor."""
        return self.ear.params(f"kaged.hook.{PRE}")


class Gate:
    """A pipe from which a plugin reads until somebody writes: it waits as long as the test says."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "gate"
        os.mkfifo(self.path)
        # Writable: pipes in folders that are only read are covered.
        self.capability = f"write:fs:{folder}"
        self.act = [{"read": str(self.path)}]

    def open(self) -> None:
        """Let whoever waits go on."""
        self.path.write_text("go", encoding="utf-8")


class Talk:
    """One session of a project, spoken to over HTTP; the model answers what it is told to."""

    def __init__(self, project: Project, model: ModelServer, session: str = "") -> None:
        self.project = project
        self.model = model
        self.id = session or str(project.post("/sessions", {})["id"])
        self.words: list[str] = []

    def say(self, text: str = "", answer: str = "Fine.", **more: Any) -> str:
        """Send a message, wait for the run's end; returns the word by which the model was asked."""
        word = f"kestrel{next(_words)}x"
        self.model.play(word, say(answer))
        body = {"text": f"{word} {text}".strip(), **more}
        self.project.post(f"/sessions/{self.id}/message", body)
        self.words.append(word)
        wait_for(lambda: self.runs()[0]["status"] not in ("running", "pending"))
        assert self.runs()[0]["status"] == "completed", self.runs()[0]
        return word

    def runs(self) -> list[dict[str, Any]]:
        """Return its runs, newest first."""
        return list(self.project.get(f"/sessions/{self.id}/runs")["items"])

    def sent(self, word: str) -> list[dict[str, Any]]:
        """Return the messages of the last request that says `word`."""
        return list(self.model.asked(word)[-1]["messages"])

    def prompt(self, word: str) -> str:
        """Return the system prompt of the last request that says `word`."""
        first = self.sent(word)[0]
        assert first["role"] in ("system", "developer"), first
        return _text(first["content"])

    def fill(self, count: int = 5, chars: int = 400) -> None:
        """Talk until there is something to compact."""
        for number in range(count):
            self.say(f"Question {number}. " + "y" * chars, f"Answer {number}. " + "x" * chars)

    def compact(self, agent: str = "primary") -> Any:
        """Compact an agent's window now."""
        return self.project.post(f"/sessions/{self.id}/compact", {"agent": agent})

    def texts(self, word: str) -> list[str]:
        """Return the words of each message of the last request that says `word`."""
        return [_text(one["content"]) for one in self.sent(word)]

    def events(self, *events: str) -> list[dict[str, Any]]:
        """Return the audit rows that name this session, oldest first."""
        rows = self.project.daemon.audit(*events)
        return [row for row in rows if self.id in json.dumps(row)]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(one.get("text", "") for one in content or [])
