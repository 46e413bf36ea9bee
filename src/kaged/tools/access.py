"""`AccessGrants`: what people granted when calls were refused, and what that adds to a caller.

A grant for one call is nowhere but in that call. One for a run lives in memory and ends with the
run; one for a session is in the store. Each counts for one agent and for the calls of one person.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kaged.base import iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.access import AccessGrant, AccessKind, AccessScope, widened
from kaged.kernel.describe import describe_access
from kaged.store.access_grant_rows import AccessGrantRecord

if TYPE_CHECKING:
    from kaged.base import Clock, Ids, JsonObject
    from kaged.kernel.policy import CagePolicy
    from kaged.store.access_grant_rows import AccessGrantRows
    from kaged.tools.context import ToolCallContext

KNOWN_SESSIONS: Final = 500
"""Of how many sessions the grants are kept in memory; those of others are read again."""

MAX_OF_RUN: Final = 200

_log = get_logger(__name__)

Seal = Callable[["CagePolicy", str], "CagePolicy"]
"""Keeps a policy from what no grant opens, for the project at a root."""


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """A grant in force: where, for whom, until when. `run_id` None is all of the session."""

    record: AccessGrantRecord
    grant: AccessGrant
    run_id: str | None = None

    @property
    def scope(self) -> AccessScope:
        """For how long it counts."""
        return AccessScope.SESSION if self.run_id is None else AccessScope.RUN

    def as_json(self) -> JsonObject:
        """Return it for programs; `words` are for people."""
        record, said = self.record, describe_access(self.grant)
        return {
            "id": record.id,
            "session_id": record.session_id,
            "run_id": self.run_id,
            "agent": record.agent,
            "owner": record.owner,
            "scope": self.scope.value,
            "grant": self.grant.text,
            "words": said.words,
            "warning": said.warning,
            "granted_by": record.granted_by,
            "granted_at": iso_utc(record.created_at_ms),
        }


class AccessGrants:
    """Keeps grants, and widens the contexts of calls by them. `seal` is applied last, always."""

    def __init__(self, rows: AccessGrantRows, ids: Ids, clock: Clock, seal: Seal) -> None:
        self._rows = rows
        self._ids = ids
        self._clock = clock
        self._seal = seal
        self._sessions: OrderedDict[str, tuple[HeldGrant, ...]] = OrderedDict()
        self._runs: dict[str, list[HeldGrant]] = {}
        self._edition = 0
        self._policies: OrderedDict[
            tuple[int, tuple[AccessGrant, ...]], tuple[CagePolicy, CagePolicy]
        ] = OrderedDict()

    async def widen(
        self, context: ToolCallContext, once: Iterable[AccessGrant] = ()
    ) -> ToolCallContext:
        """Return the context of a call with what was granted to its agent, and `once` besides."""
        held = [one.grant for one in await self.held_by(context)]
        grants = tuple(dict.fromkeys((*held, *once)))
        if not grants:
            return context
        tools = frozenset(one.target for one in grants if one.kind is AccessKind.TOOL)
        policy = context.cage_policy
        if policy is not None:
            policy = self.widened(policy, grants, context.project_root)
        return replace(context, cage_policy=policy, granted_tools=context.granted_tools | tools)

    def widened(self, policy: CagePolicy, grants: Sequence[AccessGrant], root: str) -> CagePolicy:
        """Return a policy with grants on top, sealed; the same object for the same question.

        Decisions and cages are prepared per policy, so a new one for each call would be costly.
        """
        key = (id(policy), tuple(grants))
        known = self._policies.get(key)
        # By identity: the entry holds the policy, so its id cannot pass to another one meanwhile.
        if known is None or known[0] is not policy:
            known = (policy, self._seal(widened(policy, grants, root), root))
            self._policies[key] = known
            while len(self._policies) > KNOWN_SESSIONS:
                self._policies.popitem(last=False)
        self._policies.move_to_end(key)
        return known[1]

    async def held_by(self, context: ToolCallContext) -> list[HeldGrant]:
        """Return the grants that count for a call."""
        owner = owner_of(context)
        found = (*await self._of_session(context.session_id), *self._runs.get(context.run_id, ()))
        return [
            one
            for one in found
            if one.record.agent == context.caller
            and one.record.owner == owner
            and one.record.session_id == context.session_id
            and one.record.project_id == context.project_id
        ]

    async def add(
        self,
        context: ToolCallContext,
        grants: Sequence[AccessGrant],
        scope: AccessScope,
        granted_by: str,
    ) -> None:
        """Keep grants for a run or a session."""
        now_ms = self._clock.now_ms()
        records = [
            AccessGrantRecord(
                self._ids.tagged("acc"),
                context.session_id,
                context.project_id,
                context.caller,
                owner_of(context),
                one.as_json(),
                granted_by,
                now_ms,
            )
            for one in grants
        ]
        if scope is AccessScope.RUN:
            kept = self._runs.setdefault(context.run_id, [])
            kept += [
                HeldGrant(record, one, context.run_id)
                for record, one in zip(records, grants, strict=True)
            ]
            del kept[:-MAX_OF_RUN]
            return
        await self._rows.add(records)
        self._changed(context.session_id)

    def run_ended(self, run_id: str) -> None:
        """Forget what was granted for a run."""
        self._runs.pop(run_id, None)

    # -- looking, and taking back ----------------------------------------------------------------

    async def of_project(self, project_id: str) -> list[HeldGrant]:
        """Return everything that is granted in a project's sessions now, newest first."""
        stored = [held for one in await self._rows.of_project(project_id) if (held := _read(one))]
        running = [one for kept in self._runs.values() for one in kept]
        found = [*stored, *(one for one in running if one.record.project_id == project_id)]
        return sorted(found, key=lambda one: one.record.id, reverse=True)

    async def of_session(self, project_id: str, session_id: str) -> list[HeldGrant]:
        """Return what is granted in one session now, newest first."""
        running = [one for kept in self._runs.values() for one in kept]
        return sorted(
            (
                one
                for one in (*await self._of_session(session_id), *running)
                if (one.record.project_id, one.record.session_id) == (project_id, session_id)
            ),
            key=lambda one: one.record.id,
            reverse=True,
        )

    async def remove(self, held: HeldGrant) -> None:
        """Take a grant back: it counts for no call that begins from now on."""
        if held.run_id is not None:
            kept = self._runs.get(held.run_id, [])
            self._runs[held.run_id] = [one for one in kept if one.record.id != held.record.id]
            return
        await self._rows.remove(held.record.id)
        self._changed(held.record.session_id)

    def _changed(self, session_id: str) -> None:
        self._edition += 1
        self._sessions.pop(session_id, None)

    async def _of_session(self, session_id: str) -> tuple[HeldGrant, ...]:
        known = self._sessions.get(session_id)
        if known is None:
            edition = self._edition
            records = await self._rows.of_session(session_id)
            known = tuple(held for one in records if (held := _read(one)))
            if edition != self._edition:
                return known  # something changed while it was read: the next call reads again
            self._sessions[session_id] = known
            while len(self._sessions) > KNOWN_SESSIONS:
                self._sessions.popitem(last=False)
        return known


def owner_of(context: ToolCallContext) -> str | None:
    """Return for whose calls a grant counts, and who is asked for it: None is the operator."""
    who = context.identity
    return who.person_id if who is not None and who.is_person else None


def _read(record: AccessGrantRecord) -> HeldGrant | None:
    try:
        return HeldGrant(record, AccessGrant.from_json(record.what))
    except ValueError:
        # Written by something else: what cannot be read is granted to nobody.
        _log.error("tools.access_grant_unreadable", grant=record.id)
        return None
