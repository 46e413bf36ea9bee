"""`ActorRenewal`: who somebody is by now, for work that goes on without a request of theirs.

The configuration of this moment decides, and service accounts and
invitations as they are now. What the source
said of the person is as old as their last request; nobody is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import SERVICE_PREFIX, Actor, VouchedBy
from kaged.kernel.kept_actor import KeptActor
from kaged.serve.http.access import AccessRules
from kaged.serve.http.invitations import Invitations
from kaged.serve.http.service_accounts import ServiceAccounts
from kaged.serve.signin.sign_in import SignIn

_SIGNED_IN = frozenset({VouchedBy.SIGN_IN, VouchedBy.ACCESS_TOKEN})


@dataclass(frozen=True, slots=True)
class ActorRenewal:
    """Looks up what somebody may do at the moment at which their work goes on."""

    rules: Callable[[], AccessRules]
    service_accounts: ServiceAccounts
    invitations: Invitations
    sign_in: SignIn
    project_ids: Callable[[Collection[str]], Awaitable[frozenset[str]]]

    async def __call__(self, kept: KeptActor) -> Actor | None:
        """Return the actor as they would come in now; None if they would not."""
        try:
            actor = self._actor(kept)
        except KagedError:
            return None
        if actor is None or actor.projects is None:
            return actor
        return replace(actor, projects=await self.project_ids(actor.projects))

    def _actor(self, kept: KeptActor) -> Actor | None:
        rules, facts = self.rules(), kept.facts
        if facts.person_id.startswith(SERVICE_PREFIX):
            return self.service_accounts.renewed(kept)
        if kept.vouched_by is VouchedBy.INVITATION:
            return self.invitations.renewed(kept, rules.people)
        if kept.vouched_by in _SIGNED_IN:
            now = self.sign_in.admitted_again(facts)
            if now.operator:
                return kept.operator()
            # Who was the operator and is not any more is a person, to whom less is open.
            return kept.person(now.facts, rules.people.grant_of(facts.person_id))
        if not kept.is_person:
            return kept.operator() if facts.person_id == rules.operator_id else None
        if not rules.trusted_proxies:
            return None
        return kept.person(facts, rules.people.grant_of(facts.person_id))
