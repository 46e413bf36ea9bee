"""`KeptActor`: somebody for whom work goes on later, without any of their rights.

Work outlives the request that began it: a question is answered days later, a daemon is killed and
started anew. What is kept is who they were and what vouched for it. What they may do is looked up
again at the moment at which the work goes on; so this is no `Actor` and cannot be used as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kaged.base.jsonvalue import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor, PersonFacts, PersonGrant, VouchedBy

_TEXTS: Final = (
    "chat_type",
    "chat_id",
    "provider",
    "thread_id",
    "source_username",
    "source_display_name",
)


@dataclass(frozen=True, slots=True)
class KeptActor:
    """Who acted, from where, what vouched for that and when. `facts` are as old as that moment."""

    facts: PersonFacts
    vouched_by: VouchedBy
    is_person: bool
    verified_at_ms: int
    chat_type: str | None = None
    chat_id: str | None = None
    provider: str | None = None
    thread_id: str | None = None
    source_username: str | None = None
    source_display_name: str | None = None

    @classmethod
    def of(cls, actor: Actor, now_ms: int) -> KeptActor | None:
        """Return what is kept of an actor who was verified just now; None of nobody."""
        if actor.person_id is None:
            return None
        facts = actor.facts or PersonFacts(actor.person_id)
        texts: dict[str, str | None] = {name: getattr(actor, name) for name in _TEXTS}
        return cls(facts, actor.vouched_by, actor.is_person, now_ms, **texts)

    @classmethod
    def from_json(cls, value: JsonValue) -> KeptActor | None:
        """Read what `as_json` wrote. What is not whole is nobody, who may use nothing."""
        if not isinstance(value, dict):
            return None
        facts, verified = _facts(value.get("facts")), value.get("verified_at_ms")
        vouched_by = next((one for one in VouchedBy if one == value.get("vouched_by")), None)
        if facts is None or vouched_by is None or not isinstance(verified, int):
            return None
        # Whoever is not known to be the operator is a person.
        person = value.get("is_person") is not False
        return cls(facts, vouched_by, person, verified, **_texts(value))

    def as_json(self) -> JsonObject:
        """Write it down."""
        facts = self.facts
        return {
            "facts": {
                "person_id": facts.person_id,
                "roles": [*sorted(facts.roles)],
                "teams": [*sorted(facts.teams)],
                "claims": dict(facts.claims),
                "groups": [*sorted(facts.groups)],
            },
            "vouched_by": self.vouched_by.value,
            "is_person": self.is_person,
            "verified_at_ms": self.verified_at_ms,
            **{name: getattr(self, name) for name in _TEXTS},
        }

    def person(self, facts: PersonFacts, grant: PersonGrant) -> Actor:
        """Return the person in the same chat, with what is said and allowed by now."""
        actor = Actor.person(facts, grant, self.vouched_by)
        return replace(actor, **{name: getattr(self, name) for name in _TEXTS})

    def operator(self) -> Actor:
        """Return the operator again."""
        actor = Actor.operator(self.facts.person_id, self.vouched_by)
        return replace(actor, facts=self.facts)


def _texts(value: Mapping[str, JsonValue]) -> dict[str, str | None]:
    found = {name: value.get(name) for name in _TEXTS}
    return {name: text if isinstance(text, str) else None for name, text in found.items()}


def _facts(value: JsonValue) -> PersonFacts | None:
    if not isinstance(value, dict):
        return None
    person, claims = value.get("person_id"), value.get("claims")
    if not isinstance(person, str) or not person or not isinstance(claims, dict):
        return None
    pairs = sorted((name, text) for name, text in claims.items() if isinstance(text, str))
    roles, teams, groups = (_names(value.get(name)) for name in ("roles", "teams", "groups"))
    return PersonFacts(person, roles, teams, tuple(pairs), groups)


def _names(value: JsonValue) -> frozenset[str]:
    listed = value if isinstance(value, list) else []
    return frozenset(one for one in listed if isinstance(one, str))
