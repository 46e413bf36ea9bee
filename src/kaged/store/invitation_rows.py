"""`InvitationRows`: people whom the operator invited, and the access that each invitation gave.

Of codes and tokens nothing is kept but digests. An invitation is used once: who used it first is
decided here, in one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, func

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import TEAM_PREFIX, team_of
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import invitations

MAX_OPEN: Final = 20
"""How many invitations of one person, or of one inviter into one team, can be used at a time."""
KEPT_MS: Final = 30 * 24 * 3600 * 1000
"""How long one is listed after its end."""

_C = invitations.c


@dataclass(frozen=True, slots=True)
class InvitationRecord:
    """One invitation. Once it is used, `access_*` say what the person comes in with."""

    id: str
    person_id: str
    digest: str = field(repr=False)
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    access_s: int
    used_at_ms: int | None = None
    access_digest: str | None = field(default=None, repr=False)
    access_expires_at_ms: int | None = None
    revoked_at_ms: int | None = None

    def is_open(self, now_ms: int) -> bool:
        """Return whether it can be used."""
        fresh = self.used_at_ms is None and self.revoked_at_ms is None
        return fresh and now_ms < self.expires_at_ms

    def gives_access(self, now_ms: int) -> bool:
        """Return whether the access that it gave still counts."""
        ends = self.access_expires_at_ms
        return self.revoked_at_ms is None and ends is not None and now_ms < ends


_INVITATIONS = RecordTable(invitations, InvitationRecord)


class InvitationRows(RowRepository):
    """The invitations of this daemon."""

    async def add(self, made: InvitationRecord) -> None:
        """Store an invitation; those whose end is long past are forgotten.

        Raises:
            KagedError: `too_many_invitations`.
        """
        ended = func.coalesce(_C.revoked_at_ms, _C.access_expires_at_ms, _C.expires_at_ms)

        def work(conn: Connection) -> None:
            conn.execute(delete(invitations).where(ended < made.created_at_ms - KEPT_MS))
            still_open = (
                _same_kind(made),
                _C.used_at_ms.is_(None),
                _C.revoked_at_ms.is_(None),
                _C.expires_at_ms > made.created_at_ms,
            )
            if _INVITATIONS.count(conn, *still_open) >= MAX_OPEN:
                raise KagedError(
                    f"{_whose(made)} has {MAX_OPEN} invitations that can be used.",
                    code="too_many_invitations",
                    fix="revoke some with `kaged people revoke`",
                )
            _INVITATIONS.insert(conn, made)

        await self._database.write(work)

    async def use(self, id_: str, access_digest: str) -> InvitationRecord | None:
        """Use an invitation up; None where somebody was faster, or it is not open any more."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> InvitationRecord | None:
            found = _INVITATIONS.first(conn, _C.id == id_)
            if found is None or not found.is_open(now_ms):
                return None
            used = replace(
                found,
                used_at_ms=now_ms,
                access_digest=access_digest,
                access_expires_at_ms=now_ms + found.access_s * 1000,
            )
            _INVITATIONS.put(conn, used)
            return used

        return await self._database.write(work)

    async def revoke(self, id_: str) -> InvitationRecord:
        """Note that an invitation and what it gave count no more; a revoked one stays as it is."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> InvitationRecord:
            found = _INVITATIONS.first(conn, _C.id == id_)
            assert found is not None, "who asks has just seen it"
            if found.revoked_at_ms is None:
                found = replace(found, revoked_at_ms=now_ms)
                _INVITATIONS.put(conn, found)
            return found

        return await self._database.write(work)

    async def list(self) -> Sequence[InvitationRecord]:
        """Return all of them, the oldest first."""
        return await self._all(_INVITATIONS, _INVITATIONS.select().order_by(_C.created_at_ms))


def _same_kind(made: InvitationRecord) -> ColumnElement[bool]:
    """Return which invitations are counted together with a new one."""
    team = team_of(made.person_id)
    if team is None:
        return _C.person_id == made.person_id
    below = _C.person_id.startswith(f"{TEAM_PREFIX}{team}:", autoescape=True)
    return and_(below, _C.created_by == made.created_by)


def _whose(made: InvitationRecord) -> str:
    team = team_of(made.person_id)
    return made.person_id if team is None else f"{made.created_by} in the team {team}"
