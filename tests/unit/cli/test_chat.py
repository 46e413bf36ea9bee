"""The chat's own ways: commands, and following the project's current session."""

from __future__ import annotations

import io
from typing import Any

import pytest

from kaged.cli.commands.chat_session import Chat
from kaged.cli.output import Output


class Daemon:
    """Answers as the daemon would, and keeps what was asked."""

    def __init__(self) -> None:
        self.current: str | None = "ses_1"
        self.posted: list[tuple[str, Any]] = []

    def get(self, path: str, _params: Any = None) -> Any:
        if path == "/sessions/tree":
            return {"current": self.current}
        if path == "/lua":
            return {"commands": []}
        session = path.rpartition("/")[2]
        return {"id": session, "current": session == self.current}

    def post(self, path: str, body: Any = None) -> Any:
        self.posted.append((path, body))
        if path == "/undo":
            return {"files": [{"change": "restored", "path": "log.txt"}], "steps": []}
        self.current = "ses_new"
        return {"id": "ses_new", "current": True}


class Talk:
    """A chat with what it wrote."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.out, self.err = io.StringIO(), io.StringIO()
        output = Output(as_json=False, stdout=self.out, stderr=self.err)
        options: dict[str, Any] = {"agent": "primary", "model": None, "max_steps": None}
        client: Any = self.daemon
        self.chat = Chat(client, output, options, thinking=False)


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_a_chat_in_the_current_session_follows_it(talk: Talk) -> None:
    talk.chat.enter("ses_1")
    talk.daemon.current = "ses_2"
    talk.chat.follow()
    assert talk.chat.session_id == "ses_2"
    assert "switched to another session" in talk.err.getvalue()


def test_a_chat_in_another_session_stays_there(talk: Talk) -> None:
    talk.chat.enter("ses_7")
    talk.daemon.current = "ses_2"
    talk.chat.follow()
    assert talk.chat.session_id == "ses_7"


def test_new_begins_a_session_and_forgets_the_last_run(talk: Talk) -> None:
    talk.chat.enter("ses_1")
    talk.chat.take("/new")
    assert talk.chat.session_id == "ses_new"
    talk.chat.take("/undo")
    assert "There was no run" in talk.err.getvalue()
    assert [path for path, _ in talk.daemon.posted] == ["/sessions"]


def test_what_is_no_command_is_said_so(talk: Talk) -> None:
    talk.chat.take("/frobnicate now")
    assert "no command /frobnicate" in talk.err.getvalue()


def test_the_chat_ends_with_its_input(talk: Talk) -> None:
    lines = iter(["", "  ", "/help", "/quit", "/never"])
    talk.chat.run(lambda: next(lines, None))
    assert "/fork [ENTRY]" in talk.out.getvalue()
    assert next(lines) == "/never"
