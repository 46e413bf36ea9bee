"""`ScriptSessions`: the session verbs of scripts, on the project's current session.

Reading is done at once. Everything else fills a slot of the script's line and is passed to the
navigation when the script has returned: never while it still runs, never in the middle of a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent
from kaged.base import JsonObject, JsonValue, KagedError, iso_utc
from kaged.lua.errors import ScriptCallRefused
from kaged.lua.limits import MAX_MESSAGE_CHARS
from kaged.sessions.entry import EntryDraft, EntryKind
from kaged.sessions.queued_requests import QueuedMessage
from kaged.sessions.session_service import locator

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.lua.script import WorkerConnection
    from kaged.sessions.driver import SessionDriver
    from kaged.sessions.move import SwitchOutcome
    from kaged.sessions.navigation import Navigation
    from kaged.sessions.session_service import SessionService
    from kaged.sessions.transcript import Transcript

SCRIPT_PREFIX: Final = "lua:"
MAX_LISTED: Final = 500
MAX_APPENDS: Final = 64
MAX_TARGET_CHARS: Final = 500
MAX_SAID: Final = 8
MAX_PROMPT_CHARS: Final = 4000


class ScriptSessions:
    """The sessions of one project as scripts see them."""

    def __init__(
        self,
        project_id: str,
        *,
        service: SessionService,
        transcript: Transcript,
        navigation: Navigation,
        driver: Callable[[], SessionDriver | None],
        audit: Callable[[AuditEvent], None],
    ) -> None:
        self._project_id = project_id
        self._service = service
        self._transcript = transcript
        self._navigation = navigation
        self._driver = driver
        self._audit = audit

    async def current(self) -> str | None:
        """Return the id of the project's current session."""
        return await self._service.current(self._project_id)

    async def live(self, worker: WorkerConnection | None = None) -> str | None:
        """Return the session that a script's calls are about.

        That of the event it is told of; else the project's current one; else, where the operator
        only ever ran single messages, the one used last. People's are theirs: only an event of
        one leads there.
        """
        if worker is not None and worker.focus is not None:
            return worker.focus
        current = await self.current()
        if current is not None:
            return current
        records, _ = await self._service.list(self._project_id, limit=MAX_LISTED)
        return next((one.id for one in records if one.owner is None), None)

    async def entries(self, worker: WorkerConnection | None = None) -> list[JsonObject]:
        """Return the metadata of every entry of the live session; never a word of a message."""
        current = await self.live(worker)
        if current is None:
            return []
        found: list[JsonObject] = []
        for entry in await self._transcript.entries(current):
            shown: JsonObject = {
                "id": entry.id,
                "kind": entry.kind.value,
                "ts": iso_utc(entry.ts_ms),
            }
            if entry.kind is EntryKind.MESSAGE and entry.role is not None:
                shown["role"] = entry.role.value
            found.append(shown)
        return found

    async def list(self, worker: WorkerConnection | None = None) -> list[JsonObject]:
        """Return the sessions, last used first, each with the locator that `switch` takes."""
        current = await self.live(worker)
        records, _ = await self._service.list(self._project_id, limit=MAX_LISTED)
        found: list[JsonObject] = []
        for one in records:
            shown: JsonObject = {"id": one.id, "value": locator(one.id)}
            if one.id == current:
                shown["current"] = True
            found.append(shown)
        return found

    def ask_switch(self, worker: WorkerConnection, target: object) -> None:
        """Note that a script wants another session."""
        if not isinstance(target, str) or not target or len(target) > MAX_TARGET_CHARS:
            raise ScriptCallRefused("kage.session.switch: target must be a session id or path")
        worker.move, worker.asked_in = ("switch", target), worker.focus
        self._record(worker, move="switch", target=target)

    def ask_fork_to(self, worker: WorkerConnection, at: object) -> None:
        """Note that a script wants a fork, and to go there."""
        worker.move = ("fork_to", _anchor("kage.session.fork_to", at))
        worker.asked_in = worker.focus
        self._record(worker, move="fork_to", entry_id=worker.move[1])

    def ask_fork(self, worker: WorkerConnection, at: object) -> None:
        """Note that a script wants a fork, without going there."""
        worker.branch = (_anchor("kage.session.fork", at),)
        worker.asked_in = worker.focus
        self._record(worker, move="fork", entry_id=worker.branch[0])

    def append(self, worker: WorkerConnection, draft: EntryDraft) -> None:
        """Note an entry that a script wants to be written."""
        if len(worker.appends) >= MAX_APPENDS:
            raise ScriptCallRefused(f"no more than {MAX_APPENDS} entries at a time")
        worker.appends.append(draft)
        worker.asked_in = worker.focus

    def ask_say(self, worker: WorkerConnection, text: str, *, trigger: bool) -> None:
        """Note a message that a script wants to be delivered between two turns."""
        if len(worker.says) >= MAX_SAID:
            raise ScriptCallRefused(f"kage.send_message: no more than {MAX_SAID} at a time")
        if len(text) > MAX_MESSAGE_CHARS:
            raise ScriptCallRefused(
                f"kage.send_message: text must have at most {MAX_MESSAGE_CHARS} characters"
            )
        asker = f"{SCRIPT_PREFIX}{worker.stem}"
        worker.says.append(QueuedMessage(text, asker, trigger=trigger))
        worker.asked_in = worker.focus
        self._record(worker, move="send_message")

    def ask_compact(self, worker: WorkerConnection, prompt: object) -> None:
        """Note that a script wants the session to be compacted."""
        if prompt is not None and (not isinstance(prompt, str) or len(prompt) > MAX_PROMPT_CHARS):
            raise ScriptCallRefused(
                f"kage.compact: prompt must be a string of at most {MAX_PROMPT_CHARS} characters"
            )
        worker.compacts, worker.asked_in = (prompt,), worker.focus
        self._record(worker, move="compact")

    async def usage(self, worker: WorkerConnection) -> JsonValue:
        """Return what the last turn of the live session took; None before there is one."""
        current, driver = await self.live(worker), self._driver()
        return None if current is None or driver is None else await driver.windows.usage(current)

    async def pass_on(self, worker: WorkerConnection) -> SwitchOutcome | None:
        """Do what a script that has returned asked for, or hand it to the end of the turn.

        Raises:
            KagedError: a message cannot be delivered, or the session cannot be compacted.
        """
        move, branch, appends = worker.move, worker.branch, worker.appends
        says, compacts = worker.says, worker.compacts
        if not worker.asks:
            return None
        worker.move, worker.branch, worker.appends = None, None, []
        worker.says, worker.compacts = [], None
        current = worker.asked_in or await self.live()
        worker.asked_in = None
        if current is None:
            return None
        if await self.current() is None and not await self._of_a_person(current):
            await self._navigation.enter(self._project_id, current)
        if appends:
            await self._transcript.append(current, appends)
        asker = f"{SCRIPT_PREFIX}{worker.stem}"
        if branch is not None:
            self._navigation.request_fork(current, branch[0], asked_by=asker)
        if move is not None and move[0] == "switch":
            self._navigation.request_switch(current, move[1] or "", asked_by=asker)
        elif move is not None:
            self._navigation.request_fork_to(current, move[1], asked_by=asker)
        outcome = await self._navigation.apply(current)
        driver = self._driver()
        if driver is not None and (says or compacts is not None):
            queued = driver.queued
            if compacts is not None:
                queued.ask_compaction(current, compacts[0])
            for one in says:
                queued.say(current, one)
            await driver.take_up(current)
        return outcome

    async def _of_a_person(self, session_id: str) -> bool:
        """Return whether a session is a person's: such a one never becomes the operator's own."""
        return (await self._service.get(self._project_id, session_id)).owner is not None

    def drop(self, stem: str) -> None:
        """Forget what a script asked for: it ended, or is loaded anew."""
        self._navigation.withdraw(asked_by=f"{SCRIPT_PREFIX}{stem}")

    def _record(self, worker: WorkerConnection, **facts: str | None) -> None:
        known = {name: value for name, value in facts.items() if value is not None}
        data: JsonObject = {"plugin": worker.stem, **known}
        self._audit(AuditEvent("lua.session.asked", data, project_id=self._project_id))


def custom_draft(kind: JsonValue, data: JsonValue) -> EntryDraft:
    """Read the arguments of `append_entry`."""
    if not isinstance(kind, str) or not kind or not isinstance(data, dict):
        raise ScriptCallRefused("kage.session.append_entry: kind must be a non-empty string")
    if kind.startswith("kaged."):
        raise ScriptCallRefused("kage.session.append_entry: kinds with kaged. are the host's own")
    return EntryDraft(EntryKind.CUSTOM, {"kind": kind, "data": data})


def label_draft(anchor: JsonValue, label: JsonValue) -> EntryDraft:
    """Read the arguments of `set_label`."""
    if not isinstance(anchor, str) or not anchor or not isinstance(label, str | None):
        raise ScriptCallRefused("kage.session.set_label: anchor must be a non-empty string")
    return EntryDraft(EntryKind.LABEL, {"anchor": anchor, "text": label or ""})


def _anchor(who: str, at: object) -> str | None:
    if at is not None and (not isinstance(at, str) or len(at) > MAX_TARGET_CHARS):
        raise ScriptCallRefused(f"{who}: target must be an entry-id string or nil")
    return at


def outcome_words(outcome: SwitchOutcome) -> str | None:
    """Return the message about a move that was not made; None when it was."""
    if outcome.made:
        return None
    if isinstance(outcome.error, KagedError):
        return f"{outcome.move.value}: {outcome.error.message}"
    return outcome.reason
