"""`SkillConsents`: every skill asks the operator, through the inbox, before agents follow it.

A yes is to the skill exactly as its files are: one that changed asks again. That holds for a skill
that wants no accounts, too: what agents are told to do and which scripts they run is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from kaged.audit import AuditEvent
from kaged.base import JsonObject, JsonValue
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
from kaged.kernel.ask import Ask, AskedThing
from kaged.kernel.describe import Sentence
from kaged.kernel.identity import Actor
from kaged.skills.approvals import SkillApprovals
from kaged.skills.copies import skill_changed
from kaged.skills.library import Skill, SkillSource

_WARNING: Final = "its scripts act in people's accounts through ash-sb"


def skill_ask(skill: Skill) -> Ask:
    """Return what a skill asks for: to be followed, and its capabilities, with these files."""
    things = [
        AskedThing(
            f"capability {one}", one, Sentence.dangerous_if(f"may use {one} for people", _WARNING)
        )
        for one in skill.capabilities
    ]
    words = (
        f"instructs agents and has scripts for them, in {len(skill.files)} files with the digest "
        f"{skill.digest[:12]}"
    )
    return Ask.of([*things, AskedThing("files", skill.digest, Sentence(words))])


class SkillConsents:
    """Who agreed to which skill; `operator` is the owner of skills that no project has."""

    def __init__(
        self, inbox: Inbox, approvals: SkillApprovals, post: Callable[[AuditEvent], None]
    ) -> None:
        self._inbox = inbox
        self._approvals = approvals
        self._post = post
        self._refused: dict[str, str] = {}
        inbox.register(self, RequestKind.SKILL_CONSENT)

    def agreed(self, skill: Skill, project_id: str) -> bool:
        """Return whether the operator agreed to a skill exactly as it is."""
        return self._approvals.digest_of(_owner(skill, project_id), skill.name) == skill.digest

    def update(self, skill: Skill, project_id: str) -> None:
        """Bring the inbox in line with a skill as it is now.

        What was refused is asked about again once the skill's files are others.
        """
        key = _id(skill, project_id)
        if self.agreed(skill, project_id):
            self._inbox.drop(key)
            return
        draft = _draft(skill, project_id, again=self._was_agreed(skill, project_id))
        if self._refused.get(key) != draft.digest:
            self._inbox.hold(draft)

    def forget(self, skill_name: str, project_id: str) -> None:
        """Ask no longer: the skill or its project is gone."""
        self._inbox.drop(f"skill_{project_id}_{skill_name}")

    async def agree(self, skill: Skill, project_id: str, who: Actor) -> None:
        """Agree to a skill as it is; that answers what waits for it. Raises OSError."""
        if self._inbox.waiting(_id(skill, project_id)) is None:
            await self._keep(skill.name, _owner(skill, project_id), skill.digest,
                             list(skill.capabilities), AnsweredBy.of(who))  # fmt: skip
            return
        answer = {"choice": YES}
        await self._inbox.take_answer(_id(skill, project_id), answer, AnsweredBy.of(who))

    def _was_agreed(self, skill: Skill, project_id: str) -> bool:
        return self._approvals.digest_of(_owner(skill, project_id), skill.name) is not None

    async def _keep(
        self, name: str, owner: str, digest: str, capabilities: list[JsonValue], by: AnsweredBy
    ) -> None:
        await asyncio.to_thread(self._approvals.agree, owner, name, digest)
        data: JsonObject = {"skill": name, "digest": digest, "capabilities": capabilities}
        project_id = None if owner == SkillSource.OPERATOR else owner
        self._post(
            AuditEvent(
                "skill.agreed",
                data,
                project_id=project_id,
                request_id=by.request_id,
                caller=by.caller,
            )
        )

    # -- for the inbox ---------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is kept. Raises `inbox_answer_invalid`."""
        return CheckedAnswer({"choice": YES if chosen_yes(request, answer) else NO})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Keep the agreement to what was shown, or remember that this was refused."""
        if request.state is not RequestState.ANSWERED or request.answer is None:
            return
        if request.answer["choice"] == NO:
            self._refused[request.id] = request.digest
            return
        said = request.subject
        capabilities = said["capabilities"]
        assert isinstance(capabilities, list)
        await self._keep(
            str(said["skill"]), str(said["owner"]), str(said["digest"]), capabilities, by
        )

    def event(self, request: InboxRequest) -> JsonObject:
        """Return which skill it is about."""
        return {"skill": request.subject["skill"]}


def require_shown(skill: Skill, digest: str | None) -> None:
    """Raise `skill_changed` unless a skill is still what was shown under this digest."""
    if digest is not None and digest != skill.digest:
        raise skill_changed(skill.name)


def _draft(skill: Skill, project_id: str, *, again: bool) -> RequestDraft:
    asks = "Its files changed since you agreed. It asks for:" if again else "It asks for:"
    wanted = "use people's accounts" if skill.capabilities else "instruct agents"
    return RequestDraft(
        _id(skill, project_id),
        RequestKind.SKILL_CONSENT,
        f"Let the skill {skill.name} {wanted}?",
        [str(skill.folder), skill.file.description, asks, *skill_ask(skill).lines()],
        choices=(YES, NO),
        subject={
            "skill": skill.name,
            "owner": _owner(skill, project_id),
            "digest": skill.digest,
            "capabilities": list(skill.capabilities),
        },
        project_id=None if skill.source is SkillSource.OPERATOR else project_id,
    )


def _owner(skill: Skill, project_id: str) -> str:
    return SkillSource.OPERATOR.value if skill.source is SkillSource.OPERATOR else project_id


def _id(skill: Skill, project_id: str) -> str:
    return f"skill_{_owner(skill, project_id)}_{skill.name}"
