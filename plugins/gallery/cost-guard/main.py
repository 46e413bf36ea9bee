"""cost-guard: tells when models cost too much in a day or a session, and cancels runs if wanted.

No hook of plugins can refuse a run, and none says what runs cost. So it asks the daemon for what
was used, as an operator does, and ends runs as one does: shortly after the limit, never before.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from usage import Session, Spent, Usage

from kaged.sdk import CallContext, ConfigInvalid, Plugin
from kaged.sdk.http_client import Unreachable

EVERY_S = 15
WARN_AT = 0.8
LIMITS = ("usd_per_day", "usd_per_session", "tokens_per_day", "tokens_per_session")
MAX_TOLD = 10_000

plugin = Plugin("cost-guard", "0.1.0")
status: dict[str, Any] = {}
current: list[Guard] = []


class Guard:
    """A thread that looks at what was used, again and again."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        projects = [str(one) for one in config.get("projects", [])]
        self._usage = Usage(str(config["daemon"]), str(config["daemon_token"]), projects)
        self._told: set[tuple[str, str]] = set()
        self._words: list[str] = []
        self._known: dict[str, tuple[str, Spent]] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        """Stop after the look that is under way."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                status["connected"] = True
                status["looks"] += 1
            except (Unreachable, KeyError, TypeError, ValueError) as error:
                status["connected"] = False
                plugin.log.warning(f"daemon: {error}")
            self._ended.wait(int(self._config.get("every_s", EVERY_S)))

    def _look(self) -> None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        # Ended runs first: one that ends in between is missed until the next look, not told twice.
        day = self._usage.since(f"{today}T00:00:00Z")
        sessions = self._usage.sessions()
        running = [one for one in sessions if one.running]
        live = {one.id: self._usage.of_active_run(one) for one in running}
        self._usage.forget_all_but({run for run, _ in live.values()})
        for _, spent in live.values():
            day = day.plus(spent)
        status["day"] = {"date": today, **day._asdict()}
        too_much = running if self._reached("day", today, day) else []
        if self._limit("usd", "session") or self._limit("tokens", "session"):
            reached = [
                one
                for one in sessions
                if self._reached("session", one.id, self._of_session(one, live))
            ]
            too_much += [one for one in reached if one.running and one not in too_much]
            self._known = {one.id: self._known[one.id] for one in sessions if one.id in self._known}
        if self._config.get("stop") is True:
            for one in too_much:
                self._cancel(one)
        self._tell_people()  # last, because it may take a while

    def _cancel(self, session: Session) -> None:
        try:
            self._usage.cancel(session)
        except Unreachable as error:  # the others are cancelled all the same, this one next time
            plugin.log.warning(f"cancel: {error}")
            return
        status["cancelled"] += 1
        plugin.notify("costs.cancelled", {"project": session.project, "session": session.id})

    def _of_session(self, session: Session, live: dict[str, tuple[str | None, Spent]]) -> Spent:
        """Return what a session took. One that nobody used since the last look is not read."""
        run, unfinished = live.get(session.id, (None, Spent()))
        stamp, spent = self._known.get(session.id, ("", Spent()))
        if stamp != session.updated_at or session.running:
            # The run may have ended since it was read, and counts once.
            spent = self._usage.of_session(session, run)
            self._known[session.id] = ("" if session.running else session.updated_at, spent)
        return spent.plus(unfinished)

    def _reached(self, scope: str, which: str, spent: Spent) -> bool:
        """Return whether a limit is reached, and tell once that it is, or that it is near."""
        parts = [0.0]
        for unit, count in (("usd", spent.usd), ("tokens", float(spent.tokens))):
            limit = self._limit(unit, scope)
            parts += [count / limit] if limit else []
        part = max(parts)
        told = {"scope": scope, "which": which, **spent._asdict(), "part": round(part, 3)}
        what = f"Session {which}" if scope == "session" else f"The day {which}"
        used = f"{spent.tokens} tokens, ${spent.usd:.2f}"
        if part >= 1:
            self._tell("costs.reached", which, f"{what} has reached its limit: {used}.", told)
        elif part >= float(self._config.get("warn_at", WARN_AT)):
            words = f"{what} is at {part:.0%} of its limit: {used}."
            self._tell("costs.warning", which, words, told)
        elif spent.unpriced and self._limit("usd", scope):
            words = f"{what} uses a model without a known price; a limit in dollars misses it."
            self._tell("costs.warning", f"{which} unpriced", words, told)
        return part >= 1

    def _tell(self, kind: str, about: str, words: str, told: dict[str, Any]) -> None:
        """Report something once: to programs, in the log, and at the end of the look to people."""
        if (kind, about) in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told.add((kind, about))
        plugin.log.warning(words)
        plugin.notify(kind, told)
        self._words.append(words)

    def _tell_people(self) -> None:
        project = str(self._config.get("notify_project", ""))
        while self._words:
            words = self._words.pop(0)
            try:
                if project:
                    self._usage.notify(project, words)
            except Unreachable as error:  # who cannot be told is no reason not to guard
                plugin.log.warning(f"notify.send: {error}")

    def _limit(self, unit: str, scope: str) -> float:
        return float(self._config.get(f"{unit}_per_{scope}", 0))


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration: guard with it from now on."""
    if not any(new.get(one) for one in LIMITS):
        raise ConfigInvalid(f"set at least one of {', '.join(LIMITS)}")
    while current:
        current.pop().end()
    status.update(connected=False, day=None, looks=0, cancelled=0)
    current.append(Guard(dict(new)))


@plugin.method("costs.status")
def show_status(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Return what was used today, and how many runs were cancelled."""
    return dict(status)


if __name__ == "__main__":
    plugin.start()
