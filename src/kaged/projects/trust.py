"""`TrustRequests`: restricted projects ask, through the inbox, for what their files want."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from kaged.base import JsonObject
from kaged.inbox import (
    NO,
    YES,
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestDraft,
    RequestKind,
    RequestState,
    chosen_yes,
)
from kaged.kernel.identity import Actor
from kaged.projects.agreement import Standing
from kaged.store import ProjectRecord

Agree = Callable[[str, Actor, str], Awaitable[object]]
"""Agrees, for somebody, to what a project asks for under a digest."""

RESTRICTED_WORDS: Final = (
    "Until you agree, its agents only read and search its files: no changes, no commands, no "
    "network, no plugins, and none of its instructions."
)


class TrustRequests:
    """Asks once per load; `agree` agrees on behalf of whoever said yes."""

    def __init__(self, inbox: Inbox, agree: Agree) -> None:
        self._inbox = inbox
        self._agree = agree
        self._drafts: dict[str, RequestDraft] = {}
        inbox.register(self, RequestKind.TRUST)

    def loaded(self, record: ProjectRecord, standing: Standing) -> None:
        """Ask for what a restricted project wants; one that is not restricted asks nothing."""
        if not standing.restricted:
            self.settled(record.id)
            return
        asks = "It asks for:" if standing.agreed is None else "It asks for more than before:"
        draft = RequestDraft(
            _id(record.id),
            RequestKind.TRUST,
            f"Trust the project {record.slug}?",
            [record.root, RESTRICTED_WORDS, asks, *standing.ask.lines(standing.new)],
            choices=(YES, NO),
            subject={"root": record.root, "digest": standing.ask.digest},
            project_id=record.id,
        )
        self._drafts[record.id] = draft
        self._inbox.hold(draft)

    def settled(self, project_id: str) -> None:
        """Ask no longer: the project is trusted, needs no trust, or is gone."""
        self._drafts.pop(project_id, None)
        self._inbox.drop(_id(project_id))

    async def agree(self, project_id: str, who: Actor) -> bool:
        """Answer what a project asks with yes; False when it asks nothing."""
        if self._inbox.waiting(_id(project_id)) is None:
            return False
        await self._inbox.take_answer(_id(project_id), {"choice": YES}, AnsweredBy.of(who))
        return True

    # -- for the inbox ---------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is kept. Raises `inbox_answer_invalid`."""
        return CheckedAnswer({"choice": YES if chosen_yes(request, answer) else NO})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Trust the project after a yes; after a no it is asked again at the next load."""
        if request.state is not RequestState.ANSWERED or request.answer is None:
            return
        assert request.project_id is not None
        if request.answer["choice"] == NO or by.actor is None:
            return
        try:
            await self._agree(request.project_id, by.actor, str(request.subject["digest"]))
        except BaseException:
            draft = self._drafts.get(request.project_id)
            if draft is not None:
                self._inbox.hold(draft)  # it waits for an answer again
            raise

    def event(self, request: InboxRequest) -> JsonObject:
        """Return nothing more."""
        del request
        return {}


def _id(project_id: str) -> str:
    return f"trust_{project_id}"
