"""The Matrix front end of the gallery: who wrote on the homeserver is who asks the daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.gallery import (
    LIMIT_KIB,
    Asked,
    Reply,
    StandIn,
    command_pid,
    resident_kib,
    set_up,
)
from whole.harness.model import ModelServer, say
from whole.harness.people import FRONT_END
from whole.harness.project import Project

BOT, ANN, BO, EVE = "@kaged:sea.org", "@ann:sea.org", "@bo:sea.org", "@eve:evil.org"
HALL, CABIN, DEN = "!hall:sea.org", "!cabin:sea.org", "!den:sea.org"
CLIENT = "/_matrix/client/v3"


class Homeserver(StandIn):
    """The part of the client-server API that a bot uses, with long polls."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.batches: list[dict[str, Any]] = []
        self.sent: dict[str, tuple[str, dict[str, Any]]] = {}
        self.joined: list[str] = []
        super().__init__(self.serve)

    def serve(self, asked: Asked) -> Reply:
        """Answer a request of the client-server API."""
        if asked.headers.get("authorization") != "Bearer syt_1":
            return 401, {"errcode": "M_UNKNOWN_TOKEN", "error": "Invalid access token"}
        path = asked.path.removeprefix(CLIENT)
        if path == "/account/whoami":
            return 200, {"user_id": BOT}
        if path == "/sync":
            return self.sync(asked.query)
        if path.endswith("/join") and asked.method == "POST":
            self.joined.append(unquote(path.split("/")[2]))
            return 200, {"room_id": self.joined[-1]}
        if "/send/m.room.message/" in path and asked.method == "PUT":
            room, transaction = unquote(path.split("/")[2]), path.rpartition("/")[2]
            with self.news:
                self.sent[transaction] = (room, asked.body)
                self.news.notify_all()
            return 200, {"event_id": f"${transaction}"}
        return 404, {"errcode": "M_UNRECOGNIZED"}

    def sync(self, query: dict[str, str]) -> Reply:
        """Wait for news after `since`, as long as the client says and the test has patience."""
        since = int(query.get("since", "s0")[1:])
        with self.news:
            if "since" in query:
                assert int(query["timeout"]) > 0
                self.news.wait_for(lambda: len(self.batches) > since, timeout=2)
            rooms = self.batches[since] if len(self.batches) > since else {}
            reached = since + 1 if rooms else since
        return 200, {"next_batch": f"s{reached}", "rooms": rooms}

    def tell(self, **rooms: Any) -> None:
        """Add a batch of news."""
        with self.news:
            self.batches.append(rooms)
            self.news.notify_all()

    def write(self, room: str, sender: str, text: str, members: int, **content: Any) -> None:
        """Let somebody write into a room."""
        event = {
            "type": "m.room.message",
            "sender": sender,
            "event_id": f"$e{len(self.batches)}:sea.org",
            "origin_server_ts": 1,
            "content": {"msgtype": "m.text", "body": text, **content},
        }
        summary = {"m.joined_member_count": members}
        self.tell(join={room: {"summary": summary, "timeline": {"events": [event]}}})

    def answers(self, room: str) -> list[str]:
        """Return what was sent into a room, oldest first."""
        with self.news:
            return [str(body["body"]) for place, body in self.sent.values() if place == room]


@pytest.fixture(scope="module")
def home() -> Iterator[Homeserver]:
    """Yield a homeserver."""
    made = Homeserver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, home: Homeserver) -> Iterator[Daemon]:
    """Yield a daemon with a project, and the front end connected to both."""
    people = '[auth.front_end]\nsame_people = ["matrix"]\n'
    people += f'[people."{ANN}"]\n[people."{BO}"]\nprojects = []\n'
    made = Daemon(module_path / "h", config=FRONT_END + people, local=model.local_toml())
    made.start()
    project = made.load(Project(module_path / "boats"))
    port = int(made.url.rstrip("/").rpartition(":")[2])
    home.write(CABIN, ANN, "said before anybody listened", 2)
    set_up(
        made, "matrix", home.port, port, homeserver=home.url, access_token="syt_1",
        daemon=f"http://localhost:{port}", daemon_token=made.token, project=project.id,
        people=["@*:sea.org"],
    )  # fmt: skip
    wait_for(lambda: made.post("/plugins/matrix/call/matrix.status")["result"]["connected"])
    yield made
    made.close()


def test_people_talk_as_themselves_and_each_chat_is_one_conversation(
    daemon: Daemon, home: Homeserver, model: ModelServer
) -> None:
    model.play("tide-1", say("Low at nine."))
    model.play("tide-2", say("High at three."))
    home.write(CABIN, ANN, "When is tide-1?", 2)
    wait_for(lambda: len(home.answers(CABIN)) == 1)
    home.write(CABIN, ANN, "And tide-2?", 2)
    wait_for(lambda: len(home.answers(CABIN)) == 2)
    assert home.answers(CABIN) == ["Low at nine.", "High at three."]
    [project] = daemon.get("/projects")["items"]
    place = f"/projects/{project['id']}/sessions"
    [session] = daemon.get(place)["items"]
    runs = daemon.get(f"{place}/{session['id']}/runs")["items"]
    assert len(runs) == 2, "one conversation, and nothing that was said before"
    rows = daemon.get("/usage?by=person")["items"]
    assert [(one["name"], one["runs"]) for one in rows] == [(ANN, 2)]
    assert "When is tide-1?" in str(model.asked("tide-2")[-1])


def test_whom_the_daemon_does_not_allow_gets_its_word_and_strangers_get_none(
    daemon: Daemon, home: Homeserver, model: ModelServer
) -> None:
    before = len(home.answers(HALL))
    home.write(HALL, EVE, f"{BOT}: give me everything", 9)
    home.write(HALL, ANN, "not to you", 9)
    home.write(HALL, BO, f"{BOT}: may I?", 9)
    wait_for(lambda: len(home.answers(HALL)) > before)
    assert [one[:16] for one in home.answers(HALL)[before:]] == ["I may not do tha"]
    model.play("rope-1", say("Aye."))
    home.write(HALL, ANN, "rope-1?", 9, **{"m.mentions": {"user_ids": [BOT]}})
    wait_for(lambda: "Aye." in home.answers(HALL))
    shown = daemon.post("/plugins/matrix/call/matrix.status")["result"]
    assert (shown["user"], shown["ignored"]) == (BOT, 1)


def test_it_follows_invitations_of_those_who_may_and_goes_on_after_a_restart(
    daemon: Daemon, home: Homeserver, model: ModelServer
) -> None:
    def invite(sender: str) -> dict[str, Any]:
        member = {"type": "m.room.member", "state_key": BOT, "sender": sender, "content": {}}
        return {"invite_state": {"events": [member]}}

    home.tell(invite={"!trap:evil.org": invite(EVE), DEN: invite(ANN)})
    wait_for(lambda: home.joined)
    assert home.joined == [DEN]
    daemon.post("/plugins/matrix/disable")
    model.play("sail-1", say("Set it."))
    home.write(CABIN, ANN, "sail-1?", 2)
    daemon.post("/plugins/matrix/enable")
    kib = resident_kib(command_pid(daemon.get("/plugins/matrix")["pid"]))
    assert kib <= LIMIT_KIB, kib
    wait_for(lambda: "Set it." in home.answers(CABIN))
    [project] = daemon.get("/projects")["items"]
    sessions = daemon.get(f"/projects/{project['id']}/sessions")["items"]
    assert len(sessions) == 2, "the cabin's conversation went on"
