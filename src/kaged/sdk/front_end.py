"""`Assistant`: the daemon's HTTP API as a front end uses it, one person and chat at a time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kaged.sdk.http_client import request

FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 2.0
PATIENCE_S = 900.0
ENDED = ("completed", "failed", "cancelled", "interrupted", "paused")


class Assistant:
    """Hands the words of people to the agent of a project, each as themselves.

    A chat has one session: what is said in a group is one conversation, and what somebody says in
    private is theirs alone. `folder` keeps which session is whose. `token` is the daemon's: a
    plugin with it can speak for every person, so it must know who it hears.

    `name` is the front end's: its chats are no other front end's, whatever their ids are. Nor are
    its people anybody else, unless the operator lists it in `[auth.front_end] same_people`.
    """

    def __init__(
        self, url: str, token: str, project: str, folder: Path, *, name: str | None = None
    ) -> None:
        self._base = f"{url.rstrip('/')}/api/v1/projects/{quote(project, safe='')}/sessions"
        self._headers = {"Authorization": f"Bearer {token}"}
        if name is not None:
            self._headers["X-Kaged-Front-End"] = name
        self._file = folder / "sessions.json"
        try:
            self._sessions: dict[str, str] = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            self._sessions = {}

    def answer(self, person: str, chat: str, text: str, *, private: bool) -> str:
        """Send what a person said and return what the agent answers. Raises Unreachable."""
        who = {
            "X-Kaged-User-Id": person,
            "X-Kaged-Chat-Type": "private" if private else "group",
            "X-Kaged-Chat-Id": chat,
        }
        key = f"{chat} {person}" if private else chat
        status, said = 404, {}
        if key in self._sessions:
            status, said = self._ask("POST", f"/{self._sessions[key]}/message", who, text=text)
        if status == 404:  # the first word, or the session was deleted
            begun, made = self._ask("POST", "", who)
            if begun >= 300:
                return _refusal(made)
            self._sessions[key] = str(made["id"])
            self._keep()
            status, said = self._ask("POST", f"/{self._sessions[key]}/message", who, text=text)
        if status >= 300:
            return _refusal(said)
        return self._result(self._sessions[key], str(said["run_id"]), who)

    def _result(self, session: str, run_id: str, who: dict[str, str]) -> str:
        until_s, pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
        while time.monotonic() < until_s:
            _, runs = self._ask("GET", f"/{session}/runs?limit=20", who)
            found = [one for one in (runs or {}).get("items", []) if one["id"] == run_id]
            if found and found[0]["status"] in ENDED:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LAST_PAUSE_S)
        else:
            return "This takes longer than I wait; ask again later."
        if found[0]["status"] == "paused":
            return "I have a question for you; please answer it in kaged's inbox."
        if found[0]["status"] != "completed":
            return f"That did not work: the run {found[0]['status']}."
        _, page = self._ask("GET", f"/{session}/entries?tail=true&limit=50", who)
        return _last_words((page or {}).get("items", []), run_id)

    def _ask(self, method: str, path: str, who: dict[str, str], **body: Any) -> tuple[int, Any]:
        headers = {**self._headers, **who}
        return request(method, self._base + path, headers, body if method == "POST" else None)

    def _keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps(self._sessions), encoding="utf-8")
        draft.rename(self._file)


def _refusal(said: Any) -> str:
    """Return why the daemon refused, in words for the person."""
    error = said.get("error") if isinstance(said, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f"I may not do that: {message or 'the daemon refused.'}"


def _last_words(entries: list[Any], run_id: str) -> str:
    """Return the newest text of the agent in a run, among the entries of its session."""
    for entry in reversed(entries):
        if entry["run_id"] == run_id and entry["role"] == "assistant":
            blocks = entry["content"].get("content")
            texts = [
                str(one.get("text", ""))
                for one in (blocks if isinstance(blocks, list) else [])
                if isinstance(one, dict) and one.get("type") == "text"
            ]
            text = blocks if isinstance(blocks, str) else "".join(texts)
            if text.strip():
                return text
    return "(no answer)"
