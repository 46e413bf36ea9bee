"""`ServiceAccounts`: programs that come with a token of their own and are never the operator.

All of them are held in memory, so that a request is let in without a question to the store. What is
compared is two digests in constant time.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError, iso_utc
from kaged.config.token_file import TOKEN_BYTES, digest_secret
from kaged.kernel.identity import (
    OWN_PROVIDER,
    PRIVATE_CHAT,
    SERVICE_PREFIX,
    Actor,
    PersonFacts,
    PersonGrant,
    VouchedBy,
)
from kaged.kernel.kept_actor import KeptActor
from kaged.store.service_account_rows import ServiceAccountRecord, ServiceAccountRows

PREFIX: Final = "kgsa_"
"""How every token of a service account begins, so that one that got out can be found."""

_TOKEN: Final = re.compile(rf"{PREFIX}([0-9A-HJKMNP-TV-Z]{{26}})_[A-Za-z0-9_-]{{43}}")
_NOBODYS: Final = b"\0" * 32


class ServiceAccounts:
    """The service accounts of this daemon: let in, made, listed, revoked."""

    def __init__(self, rows: ServiceAccountRows, audit: AuditLog, clock: Clock, ids: Ids) -> None:
        self._rows = rows
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._known: dict[str, ServiceAccountRecord] = {}

    async def load(self) -> None:
        """Read them from the store, before anybody comes in."""
        self._known = {one.id: one for one in await self._rows.list()}

    def __len__(self) -> int:
        """Count those whose tokens count."""
        now_ms = self._clock.now_ms()
        return sum(
            one.revoked_at_ms is None and one.expires_at_ms > now_ms for one in self._known.values()
        )

    def actor(self, token: str, request_id: str = "") -> Actor:
        """Return who comes with a token.

        Only who has the whole token learns that it has expired or was revoked.

        Raises:
            KagedError: `unauthenticated`, `token_revoked`, `token_expired`.
        """
        match = _TOKEN.fullmatch(token)
        account = None if match is None else self._known.get(match[1])
        kept = _NOBODYS if account is None else bytes.fromhex(account.digest)
        if not hmac.compare_digest(digest_secret(token), kept) or account is None:
            raise KagedError(
                "This is no token of a service account.",
                code="unauthenticated",
                fix="Make one with `kaged service-account create`.",
            )
        if account.revoked_at_ms is not None:
            raise KagedError(
                "The token of this service account was revoked.",
                code="token_revoked",
                fix="Ask the operator for another service account.",
            )
        if account.expires_at_ms <= self._clock.now_ms():
            raise KagedError(
                "The token of this service account has expired.",
                code="token_expired",
                fix="Ask the operator for another service account.",
            )
        person = Actor.person(
            _facts(account), _grant(account), VouchedBy.SERVICE_ACCOUNT, request_id
        )
        return replace(person, chat_type=PRIVATE_CHAT, provider=OWN_PROVIDER)

    def grant_of(self, person_id: str) -> PersonGrant | None:
        """Return what a service account is allowed; None for everybody else."""
        if not person_id.startswith(SERVICE_PREFIX):
            return None
        found = (one for one in self._known.values() if person_of(one.name) == person_id)
        return next(
            (_grant(one) for one in found if one.revoked_at_ms is None),
            PersonGrant(projects=frozenset(), operations=frozenset()),
        )

    def renewed(self, kept: KeptActor) -> Actor | None:
        """Return the account that acted before, as it is now; None if it counts no more."""
        person_id, now_ms = kept.facts.person_id, self._clock.now_ms()
        for one in self._known.values():
            alive = one.revoked_at_ms is None and one.expires_at_ms > now_ms
            if alive and person_of(one.name) == person_id:
                return kept.person(_facts(one), _grant(one))
        return None

    def list(self) -> Sequence[ServiceAccountRecord]:
        """Return all of them, also those whose tokens count no more, by name."""
        return sorted(self._known.values(), key=lambda one: one.name)

    async def create(
        self, name: str, facts: PersonFacts, grant: PersonGrant, lifetime_s: int, who: Actor
    ) -> tuple[ServiceAccountRecord, str]:
        """Make an account; returns it and its token, which nobody is shown again.

        Raises:
            KagedError: `service_account_exists`, `too_many_service_accounts`.
            AuditUnavailable: it could not be put on record.
        """
        self._audit.require_writable()
        id_ = self._ids.ulid()
        token = f"{PREFIX}{id_}_{secrets.token_urlsafe(TOKEN_BYTES)}"
        now_ms = self._clock.now_ms()
        made = ServiceAccountRecord(
            id_,
            name,
            digest_secret(token).hex(),
            sorted(facts.roles),
            sorted(facts.teams),
            None if grant.projects is None else sorted(grant.projects),
            None if grant.operations is None else sorted(grant.operations),
            who.label,
            now_ms,
            now_ms + lifetime_s * 1000,
        )
        await self._rows.add(made)
        data: JsonObject = {
            "name": name,
            "roles": [*made.roles],
            "teams": [*made.teams],
            "projects": _json(made.projects),
            "operations": _json(made.operations),
            "expires_at": iso_utc(made.expires_at_ms),
        }
        await self._record("service_account.created", data, who)
        # It lets somebody in only once that is on record.
        self._known[id_] = made
        return made, token

    async def revoke(self, name: str, who: Actor) -> ServiceAccountRecord:
        """Let a token count no more, from the next request on.

        Raises:
            KagedError: `service_account_not_found`.
        """
        found = next((one for one in self._known.values() if one.name == name), None)
        if found is None:
            raise KagedError(
                f"There is no service account {name[:64]}.",
                code="service_account_not_found",
                fix="`kaged service-account list` shows all of them",
            )
        self._known[found.id] = revoked = await self._rows.revoke(found.id)
        if found.revoked_at_ms is None:
            await self._record("service_account.revoked", {"name": name}, who)
        return revoked

    async def _record(self, event: str, data: JsonObject, who: Actor) -> None:
        made = AuditEvent(event, data, request_id=who.request_id, caller=who.label)
        await self._audit.record(made, durable=True)


def person_of(name: str) -> str:
    """Return the id under which an account of this name acts."""
    return f"{SERVICE_PREFIX}{name}"


def _facts(account: ServiceAccountRecord) -> PersonFacts:
    return PersonFacts(person_of(account.name), frozenset(account.roles), frozenset(account.teams))


def _grant(account: ServiceAccountRecord) -> PersonGrant:
    projects, operations = account.projects, account.operations
    return PersonGrant(
        projects=None if projects is None else frozenset(projects),
        operations=None if operations is None else frozenset(operations),
    )


def _json(names: Sequence[str] | None) -> JsonValue:
    return None if names is None else [*names]
