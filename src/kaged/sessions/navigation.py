"""`Navigation`: moves between sessions are asked for by anyone and made here, and nowhere else.

A request only fills a slot. `apply` empties it, never while a run of the session is active: it
resolves the target, asks the veto list, and then forks and moves the project's pointer in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.projects.readiness import Ready
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.sessions.move import Handler, Move, MoveVeto, Redirect, SwitchIntent, SwitchOutcome
from kaged.sessions.session_service import SessionService
from kaged.sessions.transcript import Transcript
from kaged.store import Store

HANDLER_TIMEOUT_S: Final = 600.0
"""How long one veto handler may take, a person's answer included; then it counts as a no."""
REASON_LIMIT_CHARS: Final = 500
MOVES_IN_A_ROW: Final = 8
"""How often handlers may ask for another move while they are asked about one."""
OPERATOR: Final = "operator"

_log = get_logger("kaged.sessions")


@dataclass(frozen=True, slots=True)
class _Request:
    move: Move
    target: str
    asked_by: str


class _Later(Exception):
    """A run began while handlers were asked; the request waits for its end."""


class _Refused(Exception):
    def __init__(self, veto: MoveVeto) -> None:
        super().__init__(veto.reason)
        self.veto = veto


class Navigation:
    """The slots of sessions, and the one function that moves.

    `before_switch` and `before_fork` are asked in order; the first veto or redirect decides. A
    handler that raises or takes too long has said no. `busy` tells whether a run is active, `ready`
    waits until those who may say no are there.
    """

    def __init__(
        self,
        store: Store,
        transcript: Transcript,
        service: SessionService,
        lifecycle: Lifecycle,
        *,
        busy: Callable[[str], bool] | None = None,
        timeout_s: float = HANDLER_TIMEOUT_S,
        ready: Ready,
    ) -> None:
        self.before_switch: list[Handler] = []
        self.before_fork: list[Handler] = []
        self._store = store
        self._transcript = transcript
        self._service = service
        self._lifecycle = lifecycle
        self._busy = busy or (lambda session_id: service.active_run(session_id) is not None)
        self._timeout_s = timeout_s
        self._ready = ready
        self._moves: dict[str, _Request] = {}
        self._branches: dict[str, _Request] = {}
        self._moving: set[str] = set()

    # -- asking --------------------------------------------------------------------------------

    def request_switch(self, session_id: str, target: str, *, asked_by: str = OPERATOR) -> None:
        """Ask to go to another session; replaces what was asked before and not made yet."""
        self._moves[session_id] = _Request(Move.SWITCH, target, asked_by)

    def request_fork_to(
        self, session_id: str, at: str | None = None, *, asked_by: str = OPERATOR
    ) -> None:
        """Ask to fork at an entry, by default the last, and to go there; replaces as above."""
        self._moves[session_id] = _Request(Move.FORK_TO, at or "", asked_by)

    def request_fork(
        self, session_id: str, at: str | None = None, *, asked_by: str = OPERATOR
    ) -> None:
        """Ask for a fork without going there; has a slot of its own."""
        self._branches[session_id] = _Request(Move.BRANCH, at or "", asked_by)

    def pending(self, session_id: str) -> Sequence[Move]:
        """Return what is asked for and not made yet."""
        slots = (self._branches.get(session_id), self._moves.get(session_id))
        return [one.move for one in slots if one is not None]

    def withdraw(self, session_id: str | None = None, *, asked_by: str | None = None) -> None:
        """Drop what was asked for: in one session or all, by one asker or everybody."""
        for slots in (self._moves, self._branches):
            for one, request in list(slots.items()):
                if session_id in {None, one} and asked_by in {None, request.asked_by}:
                    del slots[one]

    # -- moving --------------------------------------------------------------------------------

    async def apply(self, session_id: str, *, between_turns: bool = False) -> SwitchOutcome | None:
        """Make what was asked for in a session; None if nothing was, or if it has to wait.

        While a run of the session is active everything waits. The loop, which knows that the
        results of a turn are stored, says `between_turns`. Never raises for a request that cannot
        be met: the outcome tells, and so do the events.
        """
        if not between_turns and self._busy(session_id):
            return None
        if session_id in self._moving:
            # One at a time, and whoever is at it sees to this one next. Waiting here could be for
            # ever: a handler that is being asked may ask for a move itself.
            return None
        self._moving.add(session_id)
        outcome: SwitchOutcome | None = None
        try:
            for _ in range(MOVES_IN_A_ROW):
                made = await self._drain(session_id, between_turns=between_turns)
                if made is None:
                    break
                outcome = made
        finally:
            self._moving.discard(session_id)
        return outcome

    async def branch(
        self, session_id: str, at: str | None = None, *, asked_by: str = OPERATOR
    ) -> SwitchOutcome:
        """Fork at an entry, by default the last, unless that is vetoed.

        Nothing is moved, so a run that is active goes on meanwhile. Never raises, as `apply`.
        """
        request = _Request(Move.BRANCH, at or "", asked_by)
        return await self._make(session_id, request, between_turns=True)

    async def enter(self, project_id: str, session_id: str) -> None:
        """Make a session the current one of a project that has none; no veto, nothing is left.

        Raises:
            SessionNotFound: the project has no such session.
        """
        await self._store.branches.set_current(project_id, session_id, only_from=session_id)

    async def _drain(self, session_id: str, *, between_turns: bool) -> SwitchOutcome | None:
        """Make what the slots hold; None if they hold nothing, or nothing that can be made now."""
        outcome: SwitchOutcome | None = None
        for slots in (self._branches, self._moves):
            request = slots.pop(session_id, None)
            if request is None:
                continue
            try:
                outcome = await self._make(session_id, request, between_turns=between_turns)
            except _Later:
                slots.setdefault(session_id, request)
        return outcome

    async def _make(
        self, session_id: str, request: _Request, *, between_turns: bool
    ) -> SwitchOutcome:
        plain = SwitchOutcome(request.move, request.asked_by, request.target, session_id)
        project_id = ""
        try:
            session = await self._store.sessions.of_id(session_id)
            project_id = session.project_id
            await self._ready(project_id)
            make = self._switch if request.move is Move.SWITCH else self._fork
            outcome = await make(project_id, plain, between_turns)
        except _Refused as refused:
            outcome = replace(plain, reason=refused.veto.reason, vetoed_by=refused.veto.by)
        except KagedError as error:
            outcome = replace(plain, reason=str(error), error=error)
        self._announce(project_id, outcome)
        return outcome

    async def _switch(
        self, project_id: str, plain: SwitchOutcome, between_turns: bool
    ) -> SwitchOutcome:
        session_id = plain.from_session
        target = (await self._service.resolve(project_id, plain.target)).id
        intent = SwitchIntent(Move.SWITCH, session_id, project_id, target, plain.asked_by)
        if target != session_id:
            redirect = await self._consult(self.before_switch, "session_before_switch", intent)
            self._require_idle(session_id, between_turns)
            if redirect is not None:
                target = (await self._service.resolve(project_id, redirect.target)).id
        moved = False
        if target != session_id:
            moved = await self._store.branches.set_current(project_id, target, only_from=session_id)
        return replace(plain, to=target, moved=moved)

    async def _fork(
        self, project_id: str, plain: SwitchOutcome, between_turns: bool
    ) -> SwitchOutcome:
        session_id, at = plain.from_session, plain.target
        lands = plain.move is Move.FORK_TO
        if at:
            # Found before anybody is asked: what cannot be done needs no consent.
            at = (await self._transcript.find_entry(session_id, at)).id
        intent = SwitchIntent(plain.move, session_id, project_id, plain.target, plain.asked_by)
        handlers = self.before_switch if lands else self.before_fork
        event = "session_before_switch" if lands else "session_before_fork"
        redirect = await self._consult(handlers, event, intent)
        self._require_idle(session_id, between_turns)
        if redirect is not None:
            at = redirect.target
        made, moved = await self._transcript.fork_and_land(
            session_id, at or None, from_current=session_id if lands else None
        )
        return replace(plain, to=made.id, entry_id=made.parent_entry, moved=moved)

    async def _consult(
        self, handlers: Sequence[Handler], event: str, intent: SwitchIntent
    ) -> Redirect | None:
        for handler in tuple(handlers):
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await handler(intent)
            # Boundary: whoever cannot answer has said no, whatever went wrong.
            except Exception as error:
                _log.warning("session.veto_failed", handlers=event, error=repr(error))
                raise _Refused(MoveVeto(f"{event}: a handler failed")) from error
            if isinstance(answer, MoveVeto):
                reason = f"{event}: {answer.reason[:REASON_LIMIT_CHARS]}"
                raise _Refused(MoveVeto(reason, answer.by))
            if isinstance(answer, Redirect):
                return answer
        return None

    def _require_idle(self, session_id: str, between_turns: bool) -> None:
        """Refuse to move under a run that began while handlers, and people, were asked."""
        if not between_turns and self._busy(session_id):
            raise _Later

    def _announce(self, project_id: str, outcome: SwitchOutcome) -> None:
        branch = outcome.move is Move.BRANCH
        data: JsonObject = {
            "move": outcome.move.value,
            "asked_by": outcome.asked_by,
            "target": outcome.target,
            "from": outcome.from_session,
        }
        if outcome.made:
            if branch:
                return  # the transcript has told of the fork
            name = "session.switched"
            data |= {"to": outcome.to, "entry_id": outcome.entry_id, "current": outcome.moved}
        else:
            name = "session.fork_vetoed" if branch else "session.switch_vetoed"
            data |= {
                "reason": outcome.reason,
                "vetoed": outcome.error is None,
                "vetoed_by": outcome.vetoed_by,
            }
        self._lifecycle.emit(SessionEvent(name, outcome.from_session, project_id, None, data))
