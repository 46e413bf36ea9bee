"""`Talk`: a session that a person has with an agent, by HTTP, while the model server plays along.

What the model says is the test's; what comes of it is the daemon's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from websockets.sync.client import unix_connect

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

_words = itertools.count(1)
ENDED = ("completed", "failed", "cancelled", "paused", "interrupted")


def fresh(name: str = "word") -> str:
    """Return a word that nobody has said yet, to play a conversation on."""
    return f"{name}-{next(_words):05}-"


def play_late(model: ModelServer, word: str, late_ms: int, *turns: Mapping[str, Any]) -> None:
    """Answer whoever last said `word` with these turns, each only after a while."""
    model.play(word, *({**turn, "latency": late_ms} for turn in turns))


def play_large(model: ModelServer, word: str, *turns: Mapping[str, Any]) -> None:
    """Answer whoever last said `word` with these turns, in few large pieces."""
    model.play(word, *({**turn, "chunkSize": 100_000} for turn in turns))


def asked(model: ModelServer, word: str) -> list[dict[str, Any]]:
    """Return the requests to the model in which `word` was the last that was said to it."""

    def last_said(body: Mapping[str, Any]) -> str:
        return str([one["content"] for one in body["messages"] if one["role"] == "user"][-1:])

    return [one for one in model.asked(word) if word in last_said(one)]


def tool_answers(body: Mapping[str, Any]) -> list[str]:
    """Return what the tools answered, as a request to the model shows it."""
    return [str(one["content"]) for one in body["messages"] if one["role"] == "tool"]


class Talk:
    """One session."""

    def __init__(self, project: Project, model: ModelServer, session: str = "") -> None:
        self.project = project
        self.model = model
        self.id = session or str(project.post("/sessions", {})["id"])

    # -- what a person does --------------------------------------------------------------------

    def tell(self, text: str, **more: Any) -> str:
        """Send a message; returns the id of the run that it starts."""
        return str(self.post("/message", {"text": text, **more})["run_id"])

    def end(self, run_id: str) -> dict[str, Any]:
        """Wait until a run has ended; returns it."""

        def ended() -> list[dict[str, Any]]:
            mine = (one for one in self.runs() if one["id"] == run_id)
            return [one for one in mine if one["status"] in ENDED]

        return wait_for(ended, f"the end of {run_id}")[0]

    def hear(self, *turns: Mapping[str, Any], word: str = "", **more: Any) -> dict[str, Any]:
        """Let the model do these turns; returns the ended run, with the `word` that was said."""
        word = word or fresh()
        self.model.play(word, *turns)
        return {**self.end(self.tell(f"{word} please", **more)), "word": word}

    def use(self, *wanted: tuple[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Let the agent call these tools one after another; returns the records of the calls."""
        run = self.hear(*(call(tool, **params) for tool, params in wanted), say("Done."))
        made = [one for one in self.calls() if one["run_id"] == run["id"]]
        assert len(made) == len(wanted), made
        return made

    def result(self, tool: str, **params: Any) -> Any:
        """Let the agent call a tool that has to work; returns its result."""
        (made,) = self.use((tool, params))
        assert made["status"] == "completed", made
        return made["result"]

    def refusal(self, tool: str, **params: Any) -> dict[str, Any]:
        """Let the agent call a tool that has to fail; returns the error."""
        (made,) = self.use((tool, params))
        assert made["error"], made
        return dict(made["error"])

    def bind(self, number: int | None) -> None:
        """Let the session work on an issue."""
        path = f"/projects/{self.project.id}/sessions/{self.id}/issue"
        self.project.daemon.ask("PUT", path, {"number": number})

    # -- what there is to see ------------------------------------------------------------------

    def get(self, path: str = "") -> Any:
        """GET below the session."""
        return self.project.get(f"/sessions/{self.id}{path}")

    def post(self, path: str, body: Any = None) -> Any:
        """POST below the session."""
        return self.project.post(f"/sessions/{self.id}{path}", body)

    def runs(self) -> list[dict[str, Any]]:
        """Return its runs, oldest first."""
        return list(self.get("/runs?limit=100")["items"])[::-1]

    def calls(self) -> list[dict[str, Any]]:
        """Return its tool calls, oldest first."""
        return list(self.get("/tool-calls?limit=200")["items"])

    def entries(self) -> list[dict[str, Any]]:
        """Return what it shows."""
        return list(self.get("/entries?limit=500")["items"])

    def waiting(self) -> dict[str, Any]:
        """Return the question that it waits for, as soon as there is one."""

        def pending() -> list[dict[str, Any]]:
            items = self.project.get("/interactions?status=pending")["items"]
            return [one for one in items if one["session_id"] == self.id]

        return wait_for(pending, "a question")[0]

    def answer(self, request_id: str, **given: Any) -> dict[str, Any]:
        """Answer a question and wait for the run that goes on; returns that."""
        before = len(self.runs())
        self.project.post(f"/interactions/{request_id}/answer", given)
        run = wait_for(lambda: self.runs()[before:], "the run that goes on")[0]
        return self.end(run["id"])


class Listener:
    """A client of the event stream."""

    def __init__(self, receive: Callable[[float], str | bytes]) -> None:
        self._receive = receive
        self.heard: list[dict[str, Any]] = []

    def until(self, right: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Read events until one is right; returns everything heard so far, oldest first."""
        while not any(right(one) for one in self.heard):
            said = json.loads(self._receive(60.0))
            if said["type"] == "event":
                self.heard.append(said)
        return self.heard

    def until_quiet(self, pause_s: float) -> list[dict[str, Any]]:
        """Read events until none has come for so long; returns everything heard so far."""
        with suppress(TimeoutError):
            while True:
                said = json.loads(self._receive(pause_s))
                if said["type"] == "event":
                    self.heard.append(said)
        return self.heard


@contextmanager
def listening(daemon: Daemon, *topics: str) -> Generator[Listener]:
    """Yield a client that hears everything of these topics from now on."""
    socket = daemon.get("/status")["socket"]
    address = f"ws://kaged/api/v1/events?topics={','.join(topics)}"
    with unix_connect(socket, address) as stream:
        assert json.loads(stream.recv(60.0))["type"] == "hello"
        yield Listener(stream.recv)


def names(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of events."""
    return [str(one["name"]) for one in events]
