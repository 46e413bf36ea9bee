"""`Invitations`: people whom the operator or a lead invites, and how they come in afterwards.

A code is used once and gives one access: a token that says which invitation it came from. Who the
person is was decided by the operator; what they may use stands in `[people]` and is looked up at
every request. A lead names nobody who exists: whom they invite gets an id of its own below the
team, so that a lead who opens the link is nobody but a new member, and may use what `[teams]` says.

All of it is held in memory, so that a request is let in without a question to the store; what is
compared is digests, in constant time.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, Ids, JsonObject, KagedError, iso_utc
from kaged.config.token_file import TOKEN_BYTES, digest_secret
from kaged.kernel.identity import (
    NOTHING,
    OWN_PROVIDER,
    PERSON_ID,
    PRIVATE_CHAT,
    SERVICE_PREFIX,
    TEAM_PREFIX,
    Actor,
    People,
    PersonFacts,
    VouchedBy,
    team_of,
)
from kaged.kernel.kept_actor import KeptActor
from kaged.store.invitation_rows import InvitationRecord, InvitationRows

CODE_PREFIX: Final = "kgin_"
ACCESS_PREFIX: Final = "kgpa_"
"""How codes, and the tokens that they are traded for, begin: one that got out can be found."""

_SECRET: Final = re.compile(r"kg(?:in|pa)_([0-9A-HJKMNP-TV-Z]{26})_[A-Za-z0-9_-]{43}")
_PERSON: Final = re.compile(PERSON_ID)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=-]{0,63}")
_OWN_CHARS: Final = 8
_NOBODYS: Final = "00" * 32


class Invitations:
    """The invitations of this daemon: made, listed, used, revoked; and who came in with one."""

    def __init__(self, rows: InvitationRows, audit: AuditLog, clock: Clock, ids: Ids) -> None:
        self._rows = rows
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._known: dict[str, InvitationRecord] = {}

    async def load(self) -> None:
        """Read them from the store, before anybody comes in."""
        self._known = {one.id: one for one in await self._rows.list()}

    def list(self, who: Actor, people: People) -> Sequence[InvitationRecord]:
        """Return those that somebody may see, also ones that count no more, the oldest first."""
        found = (one for one in self._known.values() if _is_of(one, who, people))
        return sorted(found, key=lambda one: (one.created_at_ms, one.id))

    async def create(
        self,
        person_id: str,
        *,
        people: People,
        operator_id: str,
        expires_in_s: int,
        access_s: int,
        who: Actor,
    ) -> tuple[InvitationRecord, str]:
        """Invite a person; returns the invitation and its code, which nobody is shown again.

        Raises:
            KagedError: `invitation_refused`, `too_many_invitations`.
            AuditUnavailable: it could not be put on record.
        """
        self._audit.require_writable()
        if _PERSON.fullmatch(person_id) is None or person_id.startswith(SERVICE_PREFIX):
            raise _refused("This is no id of a person.", "use letters, digits and . _ @ + = : -")
        if person_id == operator_id:
            raise _refused(
                f"{person_id} is the operator of this daemon.",
                "the operator uses `kaged daemon open`",
            )
        if people.grant_of(person_id) == NOTHING:
            raise _refused(
                f"{person_id} may use nothing here: [people] names others only.",
                f'add [people."{person_id}"] to config.toml and `kill -HUP` the daemon',
            )
        return await self._add(self._ids.ulid(), person_id, expires_in_s, access_s, who)

    async def create_in_team(
        self,
        name: str,
        team: str,
        *,
        people: People,
        expires_in_s: int,
        access_s: int,
        who: Actor,
    ) -> tuple[InvitationRecord, str]:
        """Invite somebody new into a team: the operator into any, a lead into their own.

        Raises:
            KagedError: `invitation_refused`, `too_many_invitations`.
            AuditUnavailable: it could not be put on record.
        """
        self._audit.require_writable()
        found = people.teams.get(team)
        if found is None or (who.is_person and who.person_id not in found.leads):
            # The same words for both: whoever leads another team learns of no third one.
            raise _refused(
                "You do not lead a team of this name.",
                "the operator names leads in [teams.<team>] of config.toml",
            )
        if who.is_person and who.chat_type != PRIVATE_CHAT:
            raise _refused("Whoever sees the link can use it.", "invite people from a private chat")
        if _NAME.fullmatch(name) is None:
            raise _refused("This is no name of a person.", "use letters, digits and . _ @ + = -")
        if not found.invited.projects:
            raise _refused(
                f"Whoever is invited into {team} may use nothing.",
                f"list projects in [teams.{team}] of config.toml and `kill -HUP` the daemon",
            )
        id_ = self._ids.ulid()
        # The end of the id makes it nobody else's, now and when this invitation is forgotten.
        person_id = f"{TEAM_PREFIX}{team}:{name}-{id_[-_OWN_CHARS:].lower()}"
        return await self._add(id_, person_id, expires_in_s, access_s, who)

    async def _add(
        self, id_: str, person_id: str, expires_in_s: int, access_s: int, who: Actor
    ) -> tuple[InvitationRecord, str]:
        code = f"{CODE_PREFIX}{id_}_{secrets.token_urlsafe(TOKEN_BYTES)}"
        now_ms = self._clock.now_ms()
        made = InvitationRecord(
            id_,
            person_id,
            digest_secret(code).hex(),
            who.label,
            now_ms,
            now_ms + expires_in_s * 1000,
            access_s,
        )
        await self._rows.add(made)
        await self._record(
            "invitation.created",
            {"id": id_, "person_id": person_id, "expires_at": iso_utc(made.expires_at_ms)},
            who.label,
            who.request_id,
        )
        # It lets somebody in only once that is on record.
        self._known[id_] = made
        return made, code

    def look(self, code: str) -> InvitationRecord:
        """Return the invitation of a code, if it can be used. Raises `invitation_invalid`."""
        found = self._find(code, CODE_PREFIX, lambda one: one.digest)
        if found is None or not found.is_open(self._clock.now_ms()):
            raise _invalid()
        return found

    async def accept(self, code: str, request_id: str) -> tuple[InvitationRecord, str]:
        """Use a code up; returns the invitation and the token that the person comes in with.

        Raises:
            KagedError: `invitation_invalid`; which of the reasons is not told.
            AuditUnavailable: it could not be put on record.
        """
        self._audit.require_writable()
        found = self.look(code)
        token = f"{ACCESS_PREFIX}{found.id}_{secrets.token_urlsafe(TOKEN_BYTES)}"
        used = await self._rows.use(found.id, digest_secret(token).hex())
        if used is None or used.access_expires_at_ms is None:
            raise _invalid()
        data: JsonObject = {
            "id": used.id,
            "person_id": used.person_id,
            "expires_at": iso_utc(used.access_expires_at_ms),
        }
        await self._record("invitation.accepted", data, used.person_id, request_id)
        self._known[used.id] = used
        return used, token

    async def revoke(self, id_: str, who: Actor, people: People) -> InvitationRecord:
        """Let an invitation and the access that it gave count no more, from now on.

        Raises:
            KagedError: `invitation_not_found`; also for one that is not theirs.
        """
        found = self._known.get(id_)
        if found is None or not _is_of(found, who, people):
            raise KagedError(
                "There is no such invitation.",
                code="invitation_not_found",
                fix="`kaged people list` shows all of them",
            )
        return await self._end(id_, who.label, who.request_id)

    async def end_access_of(self, person_id: str, who: Actor) -> int:
        """End what accepted invitations gave a person; return how many there were."""
        now_ms = self._clock.now_ms()
        theirs = [one for one in self._known.values() if one.person_id == person_id]
        active = [one for one in theirs if one.gives_access(now_ms)]
        for one in active:
            await self._end(one.id, who.label, who.request_id)
        return len(active)

    async def give_up(self, token: str, request_id: str) -> bool:
        """End the access of whoever has its token: they sign out. False for any other text."""
        found = self._access(token)
        if found is None:
            return False
        await self._end(found.id, found.person_id, request_id)
        return True

    def actor(self, token: str, people: People, request_id: str = "") -> Actor:
        """Return who comes with a token. Raises `unauthenticated`."""
        found = self._access(token)
        if found is None or not found.gives_access(self._clock.now_ms()):
            raise KagedError(
                "The access of this invitation has ended.",
                code="unauthenticated",
                fix="Ask the operator for another invitation.",
            )
        facts = PersonFacts(found.person_id)
        grant = people.grant_of(found.person_id)
        person = Actor.person(facts, grant, VouchedBy.INVITATION, request_id)
        return replace(person, chat_type=PRIVATE_CHAT, provider=OWN_PROVIDER)

    def renewed(self, kept: KeptActor, people: People) -> Actor | None:
        """Return the person who acted before, as they are now; None if they count no more."""
        person_id, now_ms = kept.facts.person_id, self._clock.now_ms()
        for one in self._known.values():
            if one.person_id == person_id and one.gives_access(now_ms):
                return kept.person(kept.facts, people.grant_of(person_id))
        return None

    def _access(self, token: str) -> InvitationRecord | None:
        return self._find(token, ACCESS_PREFIX, lambda one: one.access_digest)

    def _find(
        self, secret: str, prefix: str, digest: Callable[[InvitationRecord], str | None]
    ) -> InvitationRecord | None:
        match = _SECRET.fullmatch(secret) if secret.startswith(prefix) else None
        found = None if match is None else self._known.get(match[1])
        kept = _NOBODYS if found is None else digest(found) or _NOBODYS
        same = hmac.compare_digest(digest_secret(secret), bytes.fromhex(kept))
        return found if same else None

    async def _end(self, id_: str, caller: str, request_id: str) -> InvitationRecord:
        before = self._known[id_]
        self._known[id_] = ended = await self._rows.revoke(id_)
        if before.revoked_at_ms is None:
            data: JsonObject = {"id": id_, "person_id": before.person_id}
            await self._record("invitation.revoked", data, caller, request_id)
        return ended

    async def _record(self, event: str, data: JsonObject, caller: str, request_id: str) -> None:
        made = AuditEvent(event, data, request_id=request_id, caller=caller)
        await self._audit.record(made, durable=True)


def is_access_token(text: str) -> bool:
    """Return whether a text is meant to be a token of somebody who was invited."""
    return text.startswith(ACCESS_PREFIX)


def _is_of(one: InvitationRecord, who: Actor, people: People) -> bool:
    """Return whether an invitation is somebody's: all are the operator's, a lead has their own."""
    if not who.is_person:
        return True
    team = team_of(one.person_id)
    led = people.led_by(who.person_id or "")
    return one.created_by == who.person_id and team in led


def _refused(message: str, fix: str) -> KagedError:
    return KagedError(message, code="invitation_refused", fix=fix)


def _invalid() -> KagedError:
    return KagedError(
        "This invitation was used already, was revoked, is too old, or was never given out.",
        code="invitation_invalid",
        fix="Ask the operator for another one.",
    )
