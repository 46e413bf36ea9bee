"""slack: people of a Slack workspace talk to an agent of kaged, each as themselves.

Slack says who wrote a message, and that id goes to the daemon as `X-Kaged-User-Id`. So what a
person may do, and what is theirs, is decided by the daemon and not by this plugin. Events come over
Socket Mode, so nobody has to reach this machine from outside.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from websocket import WebSocket

from kaged.sdk import CallContext, Plugin
from kaged.sdk.front_end import Assistant
from kaged.sdk.http_client import Unreachable, exchange

API = "https://slack.com/api"
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
SEND_PAUSES_S = (1.0, 5.0, 30.0)
LONGEST_PAUSE_S = 120.0
BUSY = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
"""What Slack calls it, with status 429 or without."""
TEXT_CHARS = 16_000
MAX_WAITING = 100
KNOWN_EVENTS = 1000

plugin = Plugin("slack", "0.1.0")
status: dict[str, Any] = {"connected": False, "user": None, "answered": 0, "ignored": 0}
current: list[Link] = []


class Said(NamedTuple):
    """What somebody said to the assistant."""

    person: str
    channel: str
    text: str
    thread: str | None
    private: bool


class Link:
    """One connection to a workspace: a thread that listens, and one that answers."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self._config = config
        self._api = str(config.get("api", API)).rstrip("/")
        where, token = str(config["daemon"]), str(config["daemon_token"])
        self._assistant = Assistant(where, token, str(config["project"]), folder, name=plugin.name)
        self._waiting: deque[Said] = deque()
        self._work = threading.Semaphore(0)
        self._events: deque[str] = deque(maxlen=KNOWN_EVENTS)
        self._user = ""
        self._socket: WebSocket | None = None
        self._pause_s = FIRST_PAUSE_S
        self._ended = False
        for target in (self._listen, self._answer_all):
            threading.Thread(target=target, daemon=True).start()

    def end(self) -> None:
        """Stop. Slack spreads events over all connections, so an old one must not stay open."""
        self._ended = True
        self._work.release()
        if self._socket is not None:
            self._socket.close()

    def _listen(self) -> None:
        while not self._ended:
            try:
                if not self._user:
                    self._user = str(self._ask("auth.test", "bot_token", {})["user_id"])
                    status["user"] = self._user
                url = str(self._ask("apps.connections.open", "app_token", {})["url"])
                self._socket = WebSocket(url)
                if self._ended:  # in the meantime, when there was nothing to close yet
                    self._socket.close()
                self._follow(self._socket)
            except (Unreachable, KeyError, TypeError, ValueError) as error:
                if self._ended:
                    return
                plugin.log.warning(f"slack: {error}")
                status["connected"] = False
                asked_for_s = error.wait_s if isinstance(error, RateLimited) else None
                time.sleep(max(self._pause_s, asked_for_s or 0.0))
                self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)
            finally:
                if self._socket is not None:
                    self._socket.close()

    def _follow(self, link: WebSocket) -> None:
        """Take messages until Slack wants a new connection, which it does every few hours."""
        while (text := link.receive()) is not None:
            message = json.loads(text)
            if "envelope_id" in message:
                # Slack sends again what is not acknowledged within seconds; answers take longer.
                link.send(json.dumps({"envelope_id": message["envelope_id"]}))
            kind = message.get("type")
            if kind == "hello":
                status["connected"], self._pause_s = True, FIRST_PAUSE_S
            elif kind == "disconnect":
                if message.get("reason") == "link_disabled":
                    raise Unreachable("Socket Mode is turned off in the app's settings")
                return
            elif kind == "events_api":
                self._hear(message["payload"])
        raise Unreachable("Slack closed the connection")

    def _hear(self, payload: dict[str, Any]) -> None:
        event = payload["event"]
        if payload["event_id"] in self._events:
            return  # sent again
        self._events.append(payload["event_id"])
        # In a channel it answers when it is spoken to; in a direct message always.
        private = event.get("type") == "message" and event.get("channel_type") == "im"
        if not private and event.get("type") != "app_mention":
            return
        if event.get("subtype") or event.get("bot_id") or event.get("user") == self._user:
            return  # edits, joins, and other programs, which could answer each other without end
        text, user, channel = event.get("text"), event.get("user"), event.get("channel")
        # In channels that workspaces share, an id alone would not say whose member somebody is.
        team = event.get("user_team") or event.get("team") or payload.get("team_id")
        if not all(isinstance(one, str) and one.strip() for one in (text, user, channel, team)):
            return
        person = f"{team}.{user}"
        if not self._may(person) or len(self._waiting) >= MAX_WAITING:
            status["ignored"] += 1
            return
        words = _plain(text.replace(f"<@{self._user}>", "")).strip(" :,")[:TEXT_CHARS]
        thread = event.get("thread_ts") or (None if private else event.get("ts"))
        self._waiting.append(Said(person, channel, words or _plain(text), thread, private))
        self._work.release()

    def _answer_all(self) -> None:
        while True:
            self._work.acquire()
            if self._ended:
                return
            said = self._waiting.popleft()
            try:
                words = self._assistant.answer(
                    said.person, said.channel, said.text, private=said.private
                )
                self._say(said, words[:TEXT_CHARS])
                status["answered"] += 1
            except (Unreachable, KeyError, TypeError) as error:
                plugin.log.warning(f"answer: {error}")

    def _say(self, said: Said, words: str) -> None:
        # Previews are off: for one Slack would open each address that an agent writes.
        message: dict[str, Any] = {
            "channel": said.channel, "text": _escaped(words),
            "unfurl_links": False, "unfurl_media": False,
        }  # fmt: skip
        if said.thread:
            message["thread_ts"] = said.thread
        for pause_s in SEND_PAUSES_S:
            try:
                self._ask("chat.postMessage", "bot_token", message)
            except RateLimited as busy:
                time.sleep(pause_s if busy.wait_s is None else busy.wait_s)
            else:
                return
        raise Unreachable("chat.postMessage: asked too often")

    def _may(self, person: str) -> bool:
        return any(fnmatchcase(person, one) for one in self._config["people"])

    def _ask(self, method: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "Authorization": f"Bearer {self._config[token]}",
            "Content-Type": "application/json; charset=utf-8",
        }
        code, fields, said = exchange("POST", f"{self._api}/{method}", headers, body)
        told = said.get("error") if isinstance(said, dict) else None
        if code == 429 or told in BUSY:
            raise RateLimited(method, fields.get("retry-after", ""))
        if code != 200 or not isinstance(said, dict) or said.get("ok") is not True:
            raise Unreachable(f"{method}: {code} {told or ''}")
        return said


class RateLimited(Unreachable):
    """Slack wants to be asked later: after `wait_s` seconds, where it said so."""

    def __init__(self, method: str, retry_after: str) -> None:
        super().__init__(f"{method}: asked too often")
        said = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10
        self.wait_s = min(float(retry_after), LONGEST_PAUSE_S) if said else None


def _plain(text: str) -> str:
    """Return what a person typed: Slack writes three characters as entities."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _escaped(text: str) -> str:
    """Return a text in which nothing is a command of Slack's, such as `<!channel>`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration: listen with it from now on."""
    while current:
        current.pop().end()
    status.update(connected=False, user=None)
    current.append(Link(dict(new), Path(os.environ["KAGED_CONFIG_ROOT"]) / "state"))


@plugin.method("slack.status")
def show_status(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Return whether it listens, as whom, and how often it answered."""
    return dict(status)


if __name__ == "__main__":
    plugin.start()
