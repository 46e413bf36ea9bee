"""`WatchedSession`: sends a message in a session and follows the run to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from kaged.base import KagedError, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.cli.commands.access_asking import (
    ACCESS,
    fetch_access,
    show_access,
)
from kaged.cli.commands.asking import Read, ask_person, at_terminal, gist_of
from kaged.cli.commands.open_requests import OpenRequests
from kaged.cli.context import locations, remote_daemon
from kaged.cli.exits import Exit
from kaged.cli.output import one_line
from kaged.cli.runner import DaemonClient
from kaged.cli.stream import GAP, SessionStream

if TYPE_CHECKING:
    from kaged.cli.output import Output
    from kaged.cli.runview import RunView

NOTICES: Final = ("lua.notice", "lua.load_notice")
ATTENTION: Final = "attention"
TICK_S: Final = 0.25
LOOK_S: Final = 10.0
"""How long no event may come before the run itself is looked up."""

START_S: Final = 60.0
TITLE_CHARS: Final = 80

_EXITS: Final = {
    "completed": Exit.OK,
    "failed": Exit.ERROR,
    "cancelled": Exit.INTERRUPTED,
    "interrupted": Exit.UNREACHABLE,
    "paused": Exit.WAITING,
}


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a run ended."""

    run_id: str
    status: str
    steps: int
    usage: dict[str, Any]
    error: dict[str, Any] | None

    @property
    def exit(self) -> Exit:
        """The exit code of the command that started it."""
        return _EXITS.get(self.status, Exit.ERROR)


class WatchedSession:
    """Follows the runs of one session. Use it inside `with`."""

    def __init__(
        self,
        client: DaemonClient,
        session_id: str,
        view: RunView,
        output: Output,
        *,
        read: Read | None = None,
        heard: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`read` asks the person instead of this terminal; `heard` is told of every event."""
        self.session_id = session_id
        self.switched_to: str | None = None
        self._client = client
        self._view = view
        self._output = output
        at_keyboard = someone_there() and not output.as_json
        self._read = read or (at_terminal if at_keyboard else None)
        self._heard = heard
        self._started: set[str] = set()
        self.requests = OpenRequests(client, view, interactive=self._read is not None)
        self._polls = read is None and at_keyboard
        self._clock = SystemClock()
        scripts = f"lua:{client.get(f'/sessions/{session_id}')['project_id']}"
        also = f"{scripts},{ATTENTION}"
        self._stream = SessionStream(
            locations().socket, session_id, self._clock, remote_daemon(), also
        )

    def __enter__(self) -> Self:
        """Start to follow."""
        self._stream.__enter__()
        return self

    def __exit__(self, *trouble: object) -> None:
        """Stop to follow."""
        self._stream.__exit__(None, None, None)

    def say(self, text: str, **options: Any) -> EndedRun:
        """Send a message and follow the run until it ends or waits for an answer."""
        body = {"text": text, **{name: one for name, one in options.items() if one is not None}}
        started = self._client.post(f"/sessions/{self.session_id}/message", body)
        self._started.add(str(started["run_id"]))
        return self.watch(started["run_id"])

    def takes_first(self, run_id: str) -> bool:
        """Return, once for each run, whether it begins with a message that was sent here."""
        if run_id not in self._started:
            return False
        self._started.remove(run_id)
        return True

    def settle(self) -> EndedRun | None:
        """Ask the person the pending question and follow the run; return None if there is none."""
        asked = self._pending()
        if asked is None or self._read is None:
            return None
        before = self.latest_run()
        body = ask_person(asked, self._output, self._read)
        self._client.post(f"/interactions/{asked['request_id']}/answer", body)
        return self.watch(self.next_run(before))

    def watch(self, run_id: str) -> EndedRun:
        """Follow a run to its end; ask the person its questions, if there is one."""
        began_s = self._clock.monotonic_s()
        ended = self._until_ended(run_id)
        while ended.status == "paused" and self._read is not None:
            asked = self._pending()
            if asked is None:
                break
            self._view.close()
            body = ask_person(asked, self._output, self._read)
            self._client.post(f"/interactions/{asked['request_id']}/answer", body)
            ended = self._until_ended(self.next_run(ended.run_id))
        self._view.close()
        self._report(ended, self._clock.monotonic_s() - began_s)
        return ended

    def _until_ended(self, run_id: str) -> EndedRun:
        cancelled = False
        quiet_since_s = self._clock.monotonic_s()
        while True:
            try:
                event = self._stream.next(TICK_S)
                if event is not None and event["name"] != GAP:
                    quiet_since_s = self._clock.monotonic_s()
                    ended = self._take(event, run_id)
                    if ended is not None:
                        return ended
                    continue
                self._view.tick()
                if self._polls:
                    self.requests.poll()
                quiet_s = self._clock.monotonic_s() - quiet_since_s
                if event is not None or quiet_s > LOOK_S:
                    quiet_since_s = self._clock.monotonic_s()
                    ended = self._looked_up(run_id)
                    if ended is not None:
                        return ended
            except KeyboardInterrupt:
                if cancelled:
                    raise
                cancelled = True
                self._view.note("Canceling the run. Press Ctrl-C again to leave at once.")
                self._client.post(f"/sessions/{self.session_id}/cancel")

    def _take(self, event: dict[str, Any], run_id: str) -> EndedRun | None:
        name, data = event["name"], event["data"]
        if name.startswith(f"{ATTENTION}."):
            mine = data.get("session_id") == self.session_id
            if mine and self._nobody_can_answer(name, data) and data.get("run_id") == run_id:
                self._view.show(event)
                return self._asked_for_access(str(data["id"]), run_id)
            if mine and self.requests.take(name, data):
                self._view.show(event)
            return None
        if data.get("run_id") not in {run_id, None}:
            return None
        if name.startswith("lua.") and name not in NOTICES:
            return None  # dialogs have commands of their own
        self._view.show(event)
        if self._heard is not None:
            self._heard(event)
        if name == "session.switched" and data.get("current"):
            self.switched_to = str(data.get("to"))
        if name != "run.ended":
            return None
        return EndedRun(
            run_id,
            str(data.get("status")),
            int(data.get("steps") or 0),
            data.get("usage") or {},
            data.get("error"),
        )

    def _looked_up(self, run_id: str) -> EndedRun | None:
        runs = self._client.get(f"/sessions/{self.session_id}/runs", {"limit": 20})["items"]
        found = next((one for one in runs if one["id"] == run_id), None)
        if found is None or found["ended_at"] is None:
            return None
        return EndedRun(
            run_id, found["status"], found["steps"], found["usage"] or {}, found["error"]
        )

    def next_run(self, before: str | None) -> str:
        """Return the run that continues with an answer, or raise `run_not_started`."""
        until_s = self._clock.monotonic_s() + START_S
        while self._clock.monotonic_s() < until_s:
            event = self._stream.next(TICK_S)
            if event is not None and event["name"] == "run.started":
                return str(event["data"]["run_id"])
            latest = self.latest_run()
            if latest is not None and latest != before:
                return latest
        raise KagedError(
            "The answer was recorded, but the agent did not continue.",
            code="run_not_started",
            fix=f"Run `kaged session resume {self.session_id}`. The daemon's log has the reason.",
        )

    def latest_run(self) -> str | None:
        """Return the newest run of the session; None before the first."""
        runs = self._client.get(f"/sessions/{self.session_id}/runs", {"limit": 1})["items"]
        return str(runs[0]["id"]) if runs else None

    def _pending(self) -> dict[str, Any] | None:
        found = self._client.get("/interactions", {"status": "pending"})["items"]
        return next((one for one in found if one["session_id"] == self.session_id), None)

    def _report(self, ended: EndedRun, took_s: float) -> None:
        if self._output.as_json:
            self._output.json_line(
                {
                    "event": "run.result",
                    "session_id": self.session_id,
                    "run_id": ended.run_id,
                    "status": ended.status,
                    "text": self._view.text,
                    "steps": ended.steps,
                    "usage": ended.usage,
                    "error": ended.error,
                    "took_ms": round(took_s * 1000),
                }
            )
            return
        if ended.status == "paused":
            self._tell_pending()
        error = ended.error or {}
        if ended.status == "failed":
            self._view.note(f"failed: {error.get('message')} [{error.get('code')}]")
            if error.get("vendor_says"):
                self._view.note(f"  the vendor says: {one_line(error['vendor_says'])}")
        if ended.status == "interrupted":
            self._view.note(
                "The daemon ended during the run. Continue it with `kaged session resume`."
            )
        self._view.note(f"{ended.status} in {summary_of(ended, took_s)} · {self.session_id}")

    def _nobody_can_answer(self, name: str, data: dict[str, Any]) -> bool:
        """Return whether a refused call waits for a person and none is at a terminal."""
        asked = name == f"{ATTENTION}.required" and data.get("kind") == ACCESS
        return asked and self._read is None

    def _asked_for_access(self, request_id: str, run_id: str) -> EndedRun | None:
        """Show how to answer the question about a refused call; the run is left waiting for it."""
        from kaged.cli.client import DaemonRefused

        try:
            asked = fetch_access(self._client, request_id)
        except DaemonRefused as refused:
            # Answered elsewhere, expired, or somebody else's to answer: the run goes on by itself.
            if not self._output.as_json:
                self._view.note(refused.message)
            return None
        self._view.close()
        show_access(asked, self._view.note)
        choices = "|".join(asked["choices"])
        self._view.note(f"  Answer with: kaged answer {request_id} --choose {choices}")
        rows = self._client.get(f"/sessions/{self.session_id}/runs", {"limit": 1})["items"]
        run: dict[str, Any] = next((one for one in rows if one["id"] == run_id), {})
        return EndedRun(run_id, "paused", run.get("steps", 0), run.get("usage") or {}, None)

    def _tell_pending(self) -> None:
        asked = self._pending()
        if asked is not None:
            self._view.note(f"The agent waits for your answer: {gist_of(asked)}")
            self._view.note(f"  Answer with: kaged answer {asked['request_id']}")


def summary_of(ended: EndedRun, took_s: float) -> str:
    """Return the steps, tokens, cost and time of a run in one line."""
    usage = ended.usage
    parts = [
        "1 step" if ended.steps == 1 else f"{ended.steps} steps",
        f"{usage.get('input_tokens', 0)} tokens in, {usage.get('output_tokens', 0)} out",
    ]
    if usage.get("cost_usd"):
        parts.append(f"${usage['cost_usd']:.4f}")
    return ", ".join([*parts, f"{took_s:.1f} s"])


def title_of(text: str) -> str:
    """Return what a session is called that begins with a text: its first words."""
    first = next((line.strip(" \t#*>-`") for line in text.splitlines() if line.strip(" #*>-`")), "")
    plain = " ".join(one_line(first).split())
    if len(plain) <= TITLE_CHARS:
        return plain
    return f"{plain[: TITLE_CHARS - 1].rpartition(' ')[0] or plain[: TITLE_CHARS - 1]}…"


def begin_session(client: DaemonClient, *, text: str, model: str | None) -> str:
    """Begin a session named after the first line of the task.

    It does not become the project's current one, so that a task does not move a chat elsewhere.
    """
    title = title_of(text)
    body = {"title": title or None, "model": model, "current": False}
    return str(client.post("/sessions", body)["id"])


def someone_there() -> bool:
    """Return whether a person can be asked: input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
