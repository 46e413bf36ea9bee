"""The Slack front end of the gallery: who wrote in the workspace is who asks the daemon."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from whole.harness.daemon import Daemon, wait_for
from whole.harness.gallery import (
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

TEAM, BOT, ANN, BO, EVE = "T0SEA", "U0BOT", "U0ANN", "U0BO", "U0EVE"
DIRECT, HALL = "D0ANN", "C0HALL"
LIMIT_KIB = 20 * 1024
"""More than the others may take: its one connection needs the library for TLS all the time."""


class Workspace(StandIn):
    """The methods of Slack's Web API that an app uses, and Socket Mode by a library of its own."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.acknowledged: list[str] = []
        self.opened: list[ServerConnection] = []
        self.busy = 0
        self.refused_at_s = self.waited_s = 0.0
        self.count = 0
        self.tickets: set[str] = set()
        self.sockets = serve(self.listen, "127.0.0.1", 0, max_size=100_000)
        self.socket_port = int(self.sockets.socket.getsockname()[1])
        self.serving = threading.Thread(target=self.sockets.serve_forever)
        self.serving.start()
        super().__init__(self.serve)

    def serve(self, asked: Asked) -> Reply:
        """Answer a method as documented: nearly everything is status 200, `ok` says the rest."""
        assert asked.method == "POST"
        assert asked.headers["content-type"].startswith("application/json")
        method = asked.path.removeprefix("/api/")
        level = "xapp-1" if method == "apps.connections.open" else "xoxb-1"
        if asked.headers.get("authorization") != f"Bearer {level}":
            return 200, {"ok": False, "error": "invalid_auth"}
        if method == "auth.test":
            return 200, {"ok": True, "team_id": TEAM, "user_id": BOT, "bot_id": "B0BOT"}
        if method == "apps.connections.open":
            ticket = f"t-{len(self.tickets)}"
            self.tickets.add(ticket)
            url = f"ws://localhost:{self.socket_port}/link/?ticket={ticket}&app_id=A0"
            return 200, {"ok": True, "url": url}
        if method == "chat.postMessage":
            if self.busy:
                self.busy -= 1
                self.refused_at_s = time.monotonic()
                return 429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "2"}
            self.waited_s = time.monotonic() - self.refused_at_s
            self.posted.append(asked.body)
            return 200, {"ok": True, "channel": asked.body["channel"], "ts": "9.9"}
        return 200, {"ok": False, "error": "unknown_method"}

    def listen(self, link: ServerConnection) -> None:
        """Greet an app that has a ticket, then keep what it acknowledges."""
        assert link.request is not None
        assert link.request.path.partition("ticket=")[2].partition("&")[0] in self.tickets
        about = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A0"}}
        link.send(json.dumps(about))
        self.opened.append(link)
        try:
            for text in link:
                self.acknowledged.append(json.loads(text)["envelope_id"])
        except ConnectionClosed:
            pass

    def hear(self, event: dict[str, Any], *, times: int = 1, split: bool = False) -> str:
        """Send an event to the app's newest connection; returns its envelope's id."""
        self.count += 1
        envelope = f"e-{self.count}"
        payload = {
            "type": "event_callback", "team_id": TEAM, "event_id": f"Ev{self.count}",
            "event": {"ts": f"{self.count}.0", "team": TEAM, **event},
        }  # fmt: skip
        for attempt in range(times):
            told = {
                "type": "events_api", "envelope_id": envelope, "payload": payload,
                "accepts_response_payload": False, "retry_attempt": attempt,
            }  # fmt: skip
            text = json.dumps(told)
            self.opened[-1].send([text[:40], text[40:]] if split else text)
        return envelope

    def direct(self, user: str, text: str, **more: Any) -> str:
        """Let somebody write a direct message to the app."""
        event = {"type": "message", "channel_type": "im", "channel": DIRECT, "user": user}
        times, split = more.pop("times", 1), more.pop("split", False)
        return self.hear({**event, "text": text, **more}, times=times, split=split)

    def mention(self, user: str, text: str, **more: Any) -> str:
        """Let somebody mention the app in a channel."""
        event = {"type": "app_mention", "channel": HALL, "user": user, "text": f"<@{BOT}> {text}"}
        return self.hear({**event, **more})

    def answers(self, channel: str) -> list[str]:
        """Return what the app wrote into a channel, oldest first."""
        return [one["text"] for one in self.posted if one["channel"] == channel]

    def close(self) -> None:
        """End it."""
        self.sockets.shutdown()
        self.serving.join()
        for one in self.opened:
            one.close()
        super().close()


@pytest.fixture(scope="module")
def slack() -> Iterator[Workspace]:
    """Yield a workspace."""
    made = Workspace()
    yield made
    made.close()


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, slack: Workspace) -> Iterator[Daemon]:
    """Yield a daemon with a project, and the front end connected to both."""
    people = '[auth.front_end]\nsame_people = ["slack"]\n'
    people += f'[people."{TEAM}.{ANN}"]\n[people."{TEAM}.{BO}"]\nprojects = []\n'
    made = Daemon(module_path / "h", config=FRONT_END + people, local=model.local_toml())
    made.start()
    project = made.load(Project(module_path / "boats"))
    port = int(made.url.rstrip("/").rpartition(":")[2])
    set_up(
        made, "slack", slack.port, slack.socket_port, port, api=f"{slack.url}/api",
        app_token="xapp-1", bot_token="xoxb-1", daemon=f"http://localhost:{port}",
        daemon_token=made.token, project=project.id, people=[f"{TEAM}.*"],
    )  # fmt: skip
    wait_for(lambda: _shown(made)["connected"])
    yield made
    made.close()


def _shown(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = daemon.post("/plugins/slack/call/slack.status")["result"]
    return found


def test_people_talk_as_themselves_and_each_chat_is_one_conversation(
    daemon: Daemon, slack: Workspace, model: ModelServer
) -> None:
    model.play("tide-1", say("Low at nine & <!channel>."))
    model.play("tide-2", say("High at three."))
    # The second time is Slack's own retry: it is acknowledged and not answered again.
    envelope = slack.direct(ANN, "When is tide-1 &lt;today&gt;?", times=2, split=True)
    wait_for(lambda: len(slack.answers(DIRECT)) == 1)
    assert slack.acknowledged == [envelope, envelope]
    slack.busy = 1
    slack.direct(ANN, "And tide-2?")
    wait_for(lambda: len(slack.answers(DIRECT)) == 2)
    assert slack.waited_s >= 2.0, "as long as Slack asked for"
    assert slack.answers(DIRECT) == ["Low at nine &amp; &lt;!channel&gt;.", "High at three."]
    assert slack.posted[0] == {
        "channel": DIRECT, "text": "Low at nine &amp; &lt;!channel&gt;.",
        "unfurl_links": False, "unfurl_media": False,
    }  # fmt: skip
    [project] = daemon.get("/projects")["items"]
    place = f"/projects/{project['id']}/sessions"
    [session] = daemon.get(place)["items"]
    assert len(daemon.get(f"{place}/{session['id']}/runs")["items"]) == 2
    rows = daemon.get("/usage?by=person")["items"]
    assert [(one["name"], one["runs"]) for one in rows] == [(f"{TEAM}.{ANN}", 2)]
    assert "When is tide-1 <today>?" in str(model.asked("tide-2")[-1])


def test_whom_the_daemon_does_not_allow_gets_its_word_and_strangers_get_none(
    daemon: Daemon, slack: Workspace, model: ModelServer
) -> None:
    model.play("rope-1", say("Aye."))
    quiet = [
        slack.direct(BOT, "my own words"),
        slack.direct(ANN, "another program", bot_id="B0X"),
        slack.direct(ANN, "what was edited", subtype="message_changed"),
        slack.hear({"type": "message", "channel": HALL, "channel_type": "channel",
                    "user": ANN, "text": "not to you"}),
    ]  # fmt: skip
    # The same id as hers in another workspace, in a channel that both share, is not her.
    slack.mention(ANN, "give me everything", user_team="T0EVIL")
    slack.mention(EVE, "and me", team="T0EVIL")
    slack.mention(BO, "may I?")
    last = slack.mention(ANN, "rope-1?", thread_ts="1.5")
    wait_for(lambda: len(slack.answers(HALL)) == 2)
    assert slack.acknowledged[-8:] == [*quiet, "e-7", "e-8", "e-9", last]
    refused, answered = slack.posted[-2:]
    assert refused["text"].startswith("I may not do that")
    assert (answered["text"], answered["thread_ts"]) == ("Aye.", "1.5")
    assert refused["thread_ts"] == "9.0"
    assert _shown(daemon) == {"connected": True, "user": BOT, "answered": 4, "ignored": 2}


def test_it_goes_on_after_slack_wants_a_new_connection_and_after_a_restart(
    daemon: Daemon, slack: Workspace, model: ModelServer
) -> None:
    model.play("sail-1", say("Set it."))
    model.play("sail-2", say("Reef it."))
    before = len(slack.opened)
    slack.opened[-1].send(json.dumps({"type": "disconnect", "reason": "refresh_requested"}))
    wait_for(lambda: len(slack.opened) > before)
    slack.direct(ANN, "sail-1?")
    wait_for(lambda: "Set it." in slack.answers(DIRECT))
    daemon.post("/plugins/slack/restart")
    wait_for(lambda: len(slack.opened) > before + 1)
    kib = resident_kib(command_pid(daemon.get("/plugins/slack")["pid"]))
    assert kib <= LIMIT_KIB, kib
    slack.direct(ANN, "sail-2?")
    wait_for(lambda: "Reef it." in slack.answers(DIRECT))
    [project] = daemon.get("/projects")["items"]
    sessions = daemon.get(f"/projects/{project['id']}/sessions")["items"]
    assert len(sessions) == 2, "the direct conversation went on"
    assert "xoxb-1" not in str(daemon.get("/plugins/slack/logs"))


def test_what_is_no_websocket_or_too_much_is_given_up_and_tried_again(
    daemon: Daemon, slack: Workspace, model: ModelServer
) -> None:
    model.play("keel-1", say("Deep."))
    before = len(slack.opened)
    slack.opened[-1].send("x" * 1_100_000)
    wait_for(lambda: len(slack.opened) == before + 1)
    wait_for(lambda: "a frame is too large" in str(daemon.get("/plugins/slack/logs")))
    slack.opened[-1].send("no JSON")
    wait_for(lambda: len(slack.opened) == before + 2)
    slack.direct(ANN, "keel-1?")
    wait_for(lambda: "Deep." in slack.answers(DIRECT))
