"""`Ownership`: whose a stored thing is and who else may see it; `may` decides for an `Actor`.

The operator of a daemon may do everything with everything in it. People whom a trusted front end
names share that daemon, and what belongs to one of them is nobody else's. What was begun in a
group's chat belongs to that chat as well, and is not seen from another one.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import PRIVATE_CHAT, Actor, chat_of_key


class Audience(StrEnum):
    """Who may see a thing beside its owner and the operator."""

    OWNER = "owner"
    CHAT = "chat"
    OPERATOR = "operator"


class AccessAction(StrEnum):
    """What somebody wants to do with a thing."""

    SEE = "see"
    STEER = "steer"
    """Say something in it, stop it, let it go on, branch off."""
    MANAGE = "manage"
    """Name it, take a copy of it away, delete it; answer what is asked on its owner's behalf."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whose a thing is: a person's, in a chat and a project. Without an owner: the operator's.

    `chat_id` is what `chat_key` returns, so that no other front end's chat is meant.
    """

    owner: str | None = None
    chat_id: str | None = None
    audience: Audience = Audience.OPERATOR
    project_id: str | None = None


OPERATORS: Final = Ownership()


def ownership_of(actor: Actor) -> Ownership:
    """Return whose something is that an actor begins."""
    if not actor.is_person:
        return OPERATORS
    group = actor.chat is not None and actor.chat_type not in {None, PRIVATE_CHAT}
    return Ownership(
        # An empty id is nobody's: what nobody began is seen by the operator only.
        actor.person_id or "",
        actor.chat,
        Audience.CHAT if group else Audience.OWNER,
    )


def may(actor: Actor, action: AccessAction, thing: Ownership) -> bool:
    """Return whether an actor may do something with a thing. What is unknown is denied."""
    if not actor.is_person:
        return True
    if not actor.person_id or not thing.owner or not may_use_project(actor, thing.project_id):
        return False
    here = actor.chat == thing.chat_id
    if actor.person_id == thing.owner:
        # In a group others read along: what is private stays out of it.
        return here or actor.chat_type == PRIVATE_CHAT
    shared = thing.audience is Audience.CHAT and here and thing.chat_id is not None
    return shared and action is not AccessAction.MANAGE


def acting_in(actor: Actor, thing: Ownership) -> Actor:
    """Return an actor as they act within a thing that they may steer: in its chat, not in theirs.

    What they cause there is read by whoever may see the thing. So somebody who is in private, and
    speaks in a group's session or in another person's, is not in private there: what is kept for
    private chats stays closed.
    """
    own = thing.owner == (actor.person_id if actor.is_person else None)
    if own and thing.audience is not Audience.CHAT:
        return actor
    if actor.is_person and actor.chat == thing.chat_id and actor.chat_type != PRIVATE_CHAT:
        return actor
    # Of what kind that chat is, nobody says here: what only some kinds may use is closed as well.
    provider, chat_id = chat_of_key(thing.chat_id)
    return replace(actor, chat_type=None, chat_id=chat_id, provider=provider, thread_id=None)


def may_use_project(actor: Actor, project_id: str | None) -> bool:
    """Return whether an actor may use a project at all. What belongs to none is nobody's to deny.

    The edge has put the ids of projects into `actor.projects`, in place of the operator's words.
    """
    if not actor.is_person or actor.projects is None or project_id is None:
        return True
    return project_id in actor.projects


def may_answer(
    actor: Actor, owner: str | None, asked_in: str | None, project_id: str | None = None
) -> bool:
    """Return whether an actor may see and answer what is asked of `owner`, or of the operator.

    The operator may answer for everybody. People answer their own, where they were asked or in
    private; without a chat it is answered anywhere.
    """
    if not actor.is_person:
        return True
    here = asked_in is None or asked_in == actor.chat or actor.chat_type == PRIVATE_CHAT
    mine = bool(actor.person_id) and actor.person_id == owner
    return mine and here and may_use_project(actor, project_id)
