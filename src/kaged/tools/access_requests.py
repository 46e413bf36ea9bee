"""`AccessRequests`: a refused call becomes a question to the person for whom it is made.

refused → is there a grant that would let it pass → inbox (and where the caller is) → answer →
kept for a run, a session, or in the project file → the call is decided once more

Asking never takes the place of a check: the call then passes all of them again, or is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kaged.audit import AuditEvent
from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import NO, CheckedAnswer, Inbox, RequestDraft, RequestKind, RequestState
from kaged.inbox.words import chosen_yes
from kaged.kernel.access import AccessGrant, AccessScope, host_access
from kaged.kernel.describe import SCOPE_WORDS, describe_access
from kaged.kernel.hosts import NetTargetInvalid, normalise_host
from kaged.projects.agreement import require_operator
from kaged.projects.granting import GrantProposal
from kaged.tools.access import AccessGrants, owner_of
from kaged.tools.context import ROOT_CALLER

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.base import Clock, Ids, JsonObject, JsonValue
    from kaged.cage.gate_port import AskHost
    from kaged.inbox import AnsweredBy, InboxRequest
    from kaged.kernel.identity import Actor
    from kaged.projects.service import ProjectService
    from kaged.tools.context import ToolCallContext

MAX_OPEN: Final = 256
MAX_OF_RUN: Final = 20
"""How many questions of this kind one run may ask; after that its calls are refused at once."""

MAX_REFUSED: Final = 200
HOST_WAIT_S: Final = 60.0
"""How long a connection is held while somebody is asked about it."""

DIFF_LINES: Final = 60
REASON_CHARS: Final = 500

_Key: TypeAlias = tuple[str, str, "str | None", str, tuple[AccessGrant, ...]]


@dataclass(eq=False)
class _Question:
    """A question that waits, and the calls that wait for it."""

    draft: RequestDraft
    context: ToolCallContext
    grants: tuple[AccessGrant, ...]
    proposal: GrantProposal | None
    key: _Key
    tool: str
    answered: asyncio.Future[AccessScope | None]
    waiters: int = 0


@dataclass(slots=True)
class _AskedOfRun:
    """What one run has asked: how often, and what somebody said no to."""

    asked: int = 0
    refused: set[_Key] = field(default_factory=set["_Key"])


class AccessRequests:
    """Asks, keeps what was answered, and takes back what was granted."""

    def __init__(
        self,
        inbox: Inbox,
        grants: AccessGrants,
        projects: ProjectService,
        ids: Ids,
        clock: Clock,
        wait_s: Callable[[], float],
    ) -> None:
        self.grants = grants
        self._inbox = inbox
        self._projects = projects
        self._ids = ids
        self._clock = clock
        self._wait_s = wait_s
        self._open: dict[str, _Question] = {}
        self._by_key: dict[_Key, _Question] = {}
        self._runs: dict[str, _AskedOfRun] = {}
        inbox.register(self, RequestKind.ACCESS)

    async def ask(
        self,
        context: ToolCallContext,
        grants: Sequence[AccessGrant],
        *,
        tool: str,
        reason: str,
        wait_s: float | None = None,
    ) -> AccessScope | None:
        """Ask for grants that a call lacks; returns for how long they were given, None for no.

        Several calls that lack the same ask once. What somebody said no to, or nobody answered, is
        not asked again in the run.
        """
        wanted = tuple(grants)
        owner = owner_of(context)
        key = (context.session_id, context.run_id, owner, context.caller, wanted)
        question = self._by_key.get(key)
        if question is None:
            asked = self._runs.setdefault(context.run_id, _AskedOfRun())
            full = asked.asked >= MAX_OF_RUN or len(self._open) >= MAX_OPEN
            if full or key in asked.refused or context.reach_person is None:
                return None
            asked.asked += 1
            wait_s = self._wait_s() if wait_s is None else wait_s
            question = self._begin(context, wanted, key, tool)
            try:
                proposal = await self._proposal(context, wanted)
            except BaseException:
                self._close(question, None)
                raise
            self._pose(question, proposal, reason, wait_s)
        return await self._answer_of(question, self._wait_s() if wait_s is None else wait_s)

    def host_asker(self, context: ToolCallContext, tool: str) -> AskHost:
        """Return what asks for destinations while a command of a call runs.

        What is granted `once` counts as long as the command runs.
        """
        once: set[AccessGrant] = set()

        async def ask(host: str, port: int) -> bool:
            try:
                grant = host_access(normalise_host(host), port)
            except NetTargetInvalid:
                return False
            if grant is None:
                return False
            held = [one.grant for one in await self.grants.held_by(context)]
            if grant in once or grant in held:
                return True
            reason = f"a command wants to connect to {grant.target}"
            scope = await self.ask(context, (grant,), tool=tool, reason=reason, wait_s=HOST_WAIT_S)
            if scope is AccessScope.ONCE:
                once.add(grant)
            return scope is not None

        return ask

    def run_ended(self, project_id: str, run_id: str) -> None:
        """Forget what was asked and granted for a run; what it still asks needs no answer."""
        del project_id
        self._runs.pop(run_id, None)
        self.grants.run_ended(run_id)
        for question in [one for one in self._open.values() if one.context.run_id == run_id]:
            self._close(question, None)

    # -- taking back -----------------------------------------------------------------------------

    async def take_back(self, project_id: str, session_id: str, grant_id: str, who: Actor) -> bool:
        """Take a grant of a session back; False when it has none of this id.

        Commands that run go on as they were started; connections are decided anew.
        """
        listed = await self.grants.of_session(project_id, session_id)
        held = next((one for one in listed if one.record.id == grant_id), None)
        if held is None:
            return False
        data: JsonObject = {
            "grant_id": grant_id,
            "agent": held.record.agent,
            "session_id": session_id,
            "grant": held.grant.text,
        }
        await self._inbox.record(
            AuditEvent(
                "access.taken_back",
                data,
                project_id=project_id,
                request_id=who.request_id or None,
                caller=who.label,
            )
        )
        await self.grants.remove(held)
        return True

    # -- the inbox asks --------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Take one of the choices. Raises `inbox_answer_invalid`."""
        chosen_yes(request, answer)
        return CheckedAnswer({"choice": answer["choice"]})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Keep what was granted, then let the calls that wait go on. Raises what writing raises."""
        question = self._open.get(request.id)
        if question is None:
            return
        choice = (request.answer or {}).get("choice")
        if request.state is not RequestState.ANSWERED or choice == NO:
            await self._refused(question, request.state, by)
            return
        scope = AccessScope(str(choice))
        try:
            await self._keep(question, scope, by)
        except BaseException:
            if request.id in self._open:
                self._inbox.hold(question.draft)  # it waits for an answer again
            raise
        await self._record("access.granted", question, by, scope=scope.value)
        self._close(question, scope)

    def event(self, request: InboxRequest) -> JsonObject:
        """Return the session and the run of the call that waits."""
        subject = request.subject or {}
        return {name: subject.get(name) for name in ("session_id", "run_id", "agent")}

    # -- own -------------------------------------------------------------------------------------

    async def _proposal(
        self, context: ToolCallContext, grants: tuple[AccessGrant, ...]
    ) -> GrantProposal | None:
        """Return what "always" would write. Only the operator agrees to what project files ask."""
        if owner_of(context) is not None:
            return None
        return await self._projects.propose_grants(context.project_id, context.caller, grants)

    def _begin(
        self, context: ToolCallContext, grants: tuple[AccessGrant, ...], key: _Key, tool: str
    ) -> _Question:
        draft = RequestDraft(self._ids.tagged("access"), RequestKind.ACCESS, "")
        answered = asyncio.get_running_loop().create_future()
        question = _Question(draft, context, grants, None, key, tool, answered)
        self._open[draft.id] = self._by_key[key] = question
        return question

    def _pose(
        self, question: _Question, proposal: GrantProposal | None, reason: str, wait_s: float
    ) -> None:
        context = question.context
        if question.answered.done():
            return  # the run has ended meanwhile
        question.proposal = proposal
        owner = owner_of(context)
        asked_in = None if owner is None or context.identity is None else context.identity.chat
        choices = [AccessScope.ONCE, AccessScope.RUN, AccessScope.SESSION]
        if proposal is not None:
            choices.append(AccessScope.ALWAYS)
        question.draft = RequestDraft(
            question.draft.id,
            RequestKind.ACCESS,
            _title(context.caller, question.grants),
            _details(question, proposal, reason),
            choices=(*(one.value for one in choices), NO),
            subject={
                "session_id": context.session_id,
                "run_id": context.run_id,
                "agent": context.caller,
                "tool": question.tool,
                "grants": [one.as_json() for one in question.grants],
                "project_file": None if proposal is None else proposal.digest,
            },
            owner=owner,
            project_id=context.project_id,
            chat_id=context.session_id,
            asked_in=asked_in,
            expires_at_ms=self._clock.now_ms() + int(wait_s * 1000),
        )
        request = self._inbox.hold(question.draft)
        if context.reach_person is not None:
            context.reach_person(request)

    async def _answer_of(self, question: _Question, wait_s: float) -> AccessScope | None:
        question.waiters += 1
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(question.answered)
        except TimeoutError:
            self._inbox.drop(question.draft.id, RequestState.EXPIRED)
            await self._refused(question, RequestState.EXPIRED, None)
            return None
        finally:
            question.waiters -= 1
            if not question.waiters:
                self._close(question, None)

    async def _keep(self, question: _Question, scope: AccessScope, by: AnsweredBy) -> None:
        if scope is AccessScope.ONCE:
            return
        context = question.context
        if scope is AccessScope.ALWAYS:
            assert question.proposal is not None  # it is no choice without one
            if by.actor is None:
                raise KagedError("Nobody is known to have answered.", code="operator_only")
            require_operator(by.actor)
            await self._projects.write_grants(context.project_id, by.actor, question.proposal)
        # A session has its agents as they were when it began: what the file says now is for others.
        kept = AccessScope.RUN if scope is AccessScope.RUN else AccessScope.SESSION
        await self.grants.add(context, question.grants, kept, by.caller)

    async def _refused(
        self, question: _Question, state: RequestState, by: AnsweredBy | None
    ) -> None:
        if question.answered.done():
            return
        asked = self._runs.get(question.context.run_id)
        if asked is not None and len(asked.refused) < MAX_REFUSED:
            asked.refused.add(question.key)
        self._close(question, None)
        reason = "no" if state is RequestState.ANSWERED else state.value
        await self._record("access.refused", question, by, reason=reason)

    def _close(self, question: _Question, scope: AccessScope | None) -> None:
        """Let the calls go on, and forget the question."""
        self._inbox.drop(question.draft.id)  # unless it was answered
        self._open.pop(question.draft.id, None)
        if self._by_key.get(question.key) is question:
            del self._by_key[question.key]
        if not question.answered.done():
            question.answered.set_result(scope)

    async def _record(
        self, name: str, question: _Question, by: AnsweredBy | None, **more: JsonValue
    ) -> None:
        context = question.context
        data: JsonObject = {
            "agent": context.caller,
            "session_id": context.session_id,
            "run_id": context.run_id,
            "tool_name": question.tool,
            "grants": [one.text for one in question.grants],
            **more,
        }
        event = AuditEvent(
            name,
            data,
            project_id=context.project_id,
            request_id=context.request_id,
            caller=None if by is None else by.caller,
        )
        await self._inbox.record(event)


def _title(agent: str, grants: Sequence[AccessGrant]) -> str:
    named = agent if agent == ROOT_CALLER else f"the subagent {agent}"
    more = f" and {len(grants) - 1} more" if len(grants) > 1 else ""
    return f"Let {named} {describe_access(grants[0]).words}{more}?"


def _details(question: _Question, proposal: GrantProposal | None, reason: str) -> tuple[str, ...]:
    lines = [f"{question.tool} was refused: {reason[:REASON_CHARS]}.", "Granted would be exactly:"]
    for one in question.grants:
        lines += describe_access(one).lines("  - ", "      ")
    words = [f"{scope.value}: {SCOPE_WORDS[scope]}" for scope in AccessScope]
    lines.append(f"{', '.join(words[:-1])}, no: it stays refused.")
    if proposal is not None:
        lines.append("always: from now on, by this change of .kaged/project.yaml:")
        shown = proposal.diff[:DIFF_LINES]
        lines += [f"  {line}" for line in shown]
        if len(proposal.diff) > len(shown):
            lines.append(f"  … and {len(proposal.diff) - len(shown)} more lines")
    return tuple(lines)
