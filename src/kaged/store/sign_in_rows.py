"""`SignInRows`: browser sessions of people who signed in, by the digest of their cookie."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import sign_ins, sign_outs

MAX_PER_SUBJECT = 32
SIGN_OUTS_KEPT_MS = 30 * 24 * 3600 * 1000
"""How long it is kept that somebody signed out: no access token should live longer."""

_C = sign_ins.c


@dataclass(frozen=True, slots=True)
class SignInRecord:
    """One browser session: who signed in where, on which of the daemon's names, until when."""

    digest: str
    issuer: str
    subject: str
    provider_session: str | None
    host: str
    claims: JsonObject
    created_at_ms: int
    expires_at_ms: int


class SignOutOf(StrEnum):
    """What a sign-out is of."""

    SUBJECT = "sub"
    SESSION = "sid"
    PERSON = "person"
    TOKEN = "token"  # noqa: S105 - the name of a kind, not a secret


class SignOut(NamedTuple):
    """Whose tokens count no more: those given to it before."""

    of: SignOutOf
    value: str

    @property
    def key(self) -> str:
        """How it is stored. A provider's subject stands for itself."""
        return self.value if self.of is SignOutOf.SUBJECT else f"{self.of}\n{self.value}"


_SIGN_INS = RecordTable(sign_ins, SignInRecord, json_columns=("claims",))


class SignInRows(RowRepository):
    """The sessions of everybody. What has ended is not found, and goes with the next sign-in."""

    async def add(self, record: SignInRecord) -> None:
        """Keep a session. The oldest of the same person end when there are too many."""

        def work(conn: Connection) -> None:
            conn.execute(delete(sign_ins).where(_C.expires_at_ms <= self._clock.now_ms()))
            theirs = (_C.issuer == record.issuer) & (_C.subject == record.subject)
            newest = select(_C.digest).where(theirs).order_by(_C.created_at_ms.desc())
            kept = [row[0] for row in conn.execute(newest.limit(MAX_PER_SUBJECT - 1))]
            conn.execute(delete(sign_ins).where(theirs, _C.digest.not_in(kept)))
            _SIGN_INS.insert(conn, record)

        await self._database.write(work)

    async def get(self, digest: str) -> SignInRecord | None:
        """Return a session that has not ended."""
        alive = _C.expires_at_ms > self._clock.now_ms()
        return await self._first(_SIGN_INS, _C.digest == digest, alive)

    async def delete(self, digest: str) -> bool:
        """End one session; return whether there was one."""
        return await self._execute(delete(sign_ins).where(_C.digest == digest)) > 0

    async def delete_of(
        self, issuer: str, *, subject: str | None = None, provider_session: str | None = None
    ) -> int:
        """End the sessions of a person, or those of one session at the provider; return how many.

        With both, a session must be of both. Whose they were has signed out from now on.
        """
        assert subject is not None or provider_session is not None, "everybody's is `delete_all`"
        where = [_C.issuer == issuer]
        if subject is not None:
            where.append(_C.subject == subject)
        if provider_session is not None:
            where.append(_C.provider_session == provider_session)
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> int:
            found = {*conn.execute(select(_C.subject).where(*where)).scalars()}
            over = [SignOut(SignOutOf.SUBJECT, one) for one in {subject, *found} if one is not None]
            if provider_session is not None:
                # Programs of that session have no browser's row here, and their tokens name it.
                over.append(SignOut(SignOutOf.SESSION, provider_session))
            _put_sign_outs(conn, issuer, over, now_ms)
            return int(conn.execute(delete(sign_ins).where(*where)).rowcount)

        return await self._database.write(work)

    async def sign_out(self, issuer: str, over: SignOut, digests: Sequence[str] = ()) -> int:
        """Note that tokens count no more, and end these sessions; return how many."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> int:
            _put_sign_outs(conn, issuer, [over], now_ms)
            return int(conn.execute(delete(sign_ins).where(_C.digest.in_(digests))).rowcount)

        return await self._database.write(work)

    async def signed_out_at_ms(self, issuer: str, *by: SignOut) -> int | None:
        """Return when the last of these sign-outs was; None if there was none."""
        keys = [one.key for one in by]
        wanted = select(func.max(sign_outs.c.at_ms)).where(
            sign_outs.c.issuer == issuer, sign_outs.c.subject.in_(keys)
        )
        return await self._database.read(lambda conn: conn.execute(wanted).scalar())

    async def all_of(self, issuer: str) -> Sequence[SignInRecord]:
        """Return the sessions of everybody who signed in at a provider."""
        return await self._all(_SIGN_INS, _SIGN_INS.select(_C.issuer == issuer))

    async def delete_all(self) -> int:
        """End every session; return how many."""
        return await self._execute(delete(sign_ins))


def _put_sign_outs(conn: Connection, issuer: str, over: Sequence[SignOut], now_ms: int) -> None:
    conn.execute(delete(sign_outs).where(sign_outs.c.at_ms <= now_ms - SIGN_OUTS_KEPT_MS))
    for key in {one.key for one in over}:
        theirs = (sign_outs.c.issuer == issuer) & (sign_outs.c.subject == key)
        conn.execute(delete(sign_outs).where(theirs))
        conn.execute(insert(sign_outs).values(issuer=issuer, subject=key, at_ms=now_ms))
