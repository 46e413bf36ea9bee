"""matrix: people of Matrix rooms talk to an agent of kaged, each as themselves.

The homeserver says who wrote a message, and that id goes to the daemon as `X-Kaged-User-Id`. So
what a person may do, and what is theirs, is decided by the daemon and not by this plugin.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kaged.sdk import CallContext, Plugin
from kaged.sdk.front_end import Assistant
from kaged.sdk.http_client import Unreachable, request

SYNC_MS = 30_000
RETRY_S = 5.0
TEXT_CHARS = 16_000
MAX_WAITING = 100
_CLIENT = "/_matrix/client/v3"

plugin = Plugin("matrix", "0.1.0")
status: dict[str, Any] = {"connected": False, "user": None, "answered": 0, "ignored": 0}
current: list[Link] = []


class Link:
    """One connection to a homeserver: a thread that listens, and one that answers."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self._config = config
        self._home = str(config["homeserver"]).rstrip("/") + _CLIENT
        self._headers = {"Authorization": f"Bearer {config['access_token']}"}
        where, token = str(config["daemon"]), str(config["daemon_token"])
        self._assistant = Assistant(where, token, str(config["project"]), folder, name=plugin.name)
        self._since_file = folder / "since"
        self._waiting: deque[tuple[str, str, str, str, bool]] = deque()
        self._work = threading.Semaphore(0)
        self._ended = False
        self._members: dict[str, int] = {}
        for target in (self._listen, self._answer_all):
            threading.Thread(target=target, daemon=True).start()

    def end(self) -> None:
        """Stop after the request that is under way."""
        self._ended = True
        self._work.release()

    def _listen(self) -> None:
        while not self._ended:
            try:
                if status["user"] is None:
                    status["user"] = self._ask("GET", "/account/whoami")["user_id"]
                self._sync()
                status["connected"] = True
            except (Unreachable, KeyError, TypeError) as error:
                status["connected"] = False
                plugin.log.warning(f"homeserver: {error}")
                time.sleep(RETRY_S)

    def _sync(self) -> None:
        """Wait for news: `GET /sync`. The first time only from now on, not what was said before."""
        since = self._since_file.read_text("ascii") if self._since_file.exists() else ""
        wait = f"timeout={SYNC_MS}&since={quote(since, safe='')}" if since else "timeout=0"
        said = self._ask("GET", f"/sync?{wait}", patience_s=SYNC_MS / 1000 + 30)
        rooms = said.get("rooms", {})
        for room in rooms.get("invite", {}):
            inviter = _inviter(rooms["invite"][room], str(status["user"]))
            if self._may(inviter):
                self._ask("POST", f"/rooms/{quote(room, safe='')}/join", {})
        for room, news in rooms.get("join", {}).items():
            count = news.get("summary", {}).get("m.joined_member_count")
            if isinstance(count, int):
                self._members[room] = count
            for event in news.get("timeline", {}).get("events", []) if since else []:
                self._hear(room, event)
        self._since_file.parent.mkdir(parents=True, exist_ok=True)
        self._since_file.write_text(str(said["next_batch"]), encoding="ascii")

    def _hear(self, room: str, event: dict[str, Any]) -> None:
        content, sender = event.get("content", {}), str(event.get("sender", ""))
        text = content.get("body") if content.get("msgtype") == "m.text" else None
        if event.get("type") != "m.room.message" or not isinstance(text, str) or not text.strip():
            return
        if sender == status["user"]:
            return
        # In a room with others it answers when it is spoken to; two are a conversation.
        private = self._members.get(room) == 2
        mentioned = content.get("m.mentions", {}).get("user_ids", [])
        name = str(status["user"])
        if not private and name not in mentioned and name not in text:
            return
        if not self._may(sender) or len(self._waiting) >= MAX_WAITING:
            status["ignored"] += 1
            return
        words = text.replace(name, "").strip(" :,")[:TEXT_CHARS]
        self._waiting.append((room, str(event["event_id"]), sender, words or text, private))
        self._work.release()

    def _answer_all(self) -> None:
        while True:
            self._work.acquire()
            if self._ended:
                return
            room, event_id, sender, text, private = self._waiting.popleft()
            try:
                words = self._assistant.answer(sender, room, text, private=private)
                # The event's id makes the answer's: one that is sent again is not said twice.
                path = (
                    f"/rooms/{quote(room, safe='')}/send/m.room.message/{quote(event_id, safe='')}"
                )
                self._ask("PUT", path, {"msgtype": "m.text", "body": words[:TEXT_CHARS]})
                status["answered"] += 1
            except (Unreachable, KeyError, TypeError) as error:
                plugin.log.warning(f"answer: {error}")

    def _may(self, person: str) -> bool:
        return any(fnmatchcase(person, one) for one in self._config["people"])

    def _ask(self, method: str, path: str, body: Any = None, patience_s: float = 30.0) -> Any:
        code, said = request(method, self._home + path, self._headers, body, patience_s)
        if code != 200:
            told = said.get("errcode") if isinstance(said, dict) else None
            raise Unreachable(f"{method} {path.partition('?')[0]}: {code} {told or ''}")
        return said


def _inviter(invite: dict[str, Any], own: str) -> str:
    """Return who invited us, out of the stripped state of a room."""
    for event in invite.get("invite_state", {}).get("events", []):
        if event.get("type") == "m.room.member" and event.get("state_key") == own:
            return str(event.get("sender", ""))
    return ""


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration: listen with it from now on."""
    while current:
        current.pop().end()
    status.update(connected=False, user=None)
    current.append(Link(dict(new), Path(os.environ["KAGED_CONFIG_ROOT"]) / "state"))


@plugin.method("matrix.status")
def show_status(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Return whether it listens, as whom, and how often it answered."""
    return dict(status)


if __name__ == "__main__":
    plugin.start()
