"""`CallOrigin`: verified facts about a call, and the slots that the host fills from them.

Only the host makes one, at the start of a call, from token claims, the request and the session.
Nothing of a payload, an argument or a peer's message gets in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from kaged.base import iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.call_facts import Arrival, span_id_of, trace_id_of
from kaged.kernel.identity import EVERYBODY_ELSE, SERVICE_PREFIX, Actor
from kaged.pipeline import slots
from kaged.pipeline.host_facts import NO_FACTS, HostFacts

FRAMEWORK = "kaged"
HOST_DOMAIN = "kaged"
"""The trust domain of what the host itself answers for."""

COST_PROPERTY = "cost_usd"
"""In `meta.properties` of a model's answer: what it cost, as a decimal number."""

_NO_TEXTS: frozenset[str] = frozenset()
_ALL = frozenset({EVERYBODY_ELSE})


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Which agent acts: its path from the root agent, with the moment each was set to work."""

    session_id: str
    path: tuple[str, ...]
    started_ms: tuple[int, ...] = ()
    turn: int | None = None
    input: str | None = None


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Everything the host knows for certain about a call before it is made.

    `model` is the alias of the model that the agent works with. `objects` says what using a tool
    takes, `data` what is done with what it returns. `actor` is who may see what came of it.
    """

    request_id: str
    at_ms: int
    arrival: Arrival | None = None
    subject: slots.SubjectExtension | None = None
    agent: AgentPlace | None = None
    labels: frozenset[str] = _NO_TEXTS
    objects: Mapping[str, slots.ObjectSecurityProfile] | None = None
    data: Mapping[str, slots.DataPolicy] | None = None
    source: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    tags: frozenset[str] = _NO_TEXTS
    scope: str | None = None
    properties: Mapping[str, str] = field(default_factory=_empty)
    model: str | None = None
    actor: Actor | None = None

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Return the caller's headers that policies may see; None where there are none to see."""
        arrival = self.arrival
        return None if arrival is None or arrival.headers is None else dict(arrival.headers)

    @property
    def trace_id(self) -> str:
        """Return the trace that the call belongs to: the caller's, else the run's own."""
        if self.arrival is not None:
            return self.arrival.trace_id
        return trace_id_of(self.properties.get("run_id") or self.request_id)


def subject_of(actor: Actor | None, name: str) -> slots.SubjectExtension:
    """Return whom a call is made for, with all that is known of them.

    `name` is who it is where nobody was authenticated.
    """
    if actor is None or actor.person_id is None:
        return slots.SubjectExtension(
            id=name, type=slots.SubjectType.USER, permissions=_permissions(None)
        )
    service = actor.person_id.startswith(SERVICE_PREFIX)
    return slots.SubjectExtension(
        id=actor.person_id,
        type=slots.SubjectType.SERVICE if service else slots.SubjectType.USER,
        roles=actor.roles,
        teams=actor.teams,
        claims=dict(actor.claims),
        permissions=_permissions(actor),
    )


def _permissions(actor: Actor | None) -> frozenset[str]:
    """Return what the operator allows somebody; the operator may use everything."""
    projects = None if actor is None else actor.projects
    operations = None if actor is None else actor.operations
    return frozenset(
        [f"project:{one}" for one in (_ALL if projects is None else projects)]
        + [f"operation:{one}" for one in (_ALL if operations is None else operations)]
    )


def data_policy(source: str, labels: frozenset[str]) -> dict[str, slots.DataPolicy]:
    """Return what the host does with what a source returns: the labels that it puts on it."""
    return {source: slots.DataPolicy(apply_labels=sorted(labels))} if labels else {}


def fill_slots(
    origin: CallOrigin,
    facts: HostFacts = NO_FACTS,
    *,
    mcp: slots.MCPExtension | None = None,
    completion: slots.CompletionExtension | None = None,
    custom: dict[str, Any] | None = None,
) -> slots.Extensions:
    """Fill the slots for one call; slots about which nothing is known stay empty."""
    return slots.Extensions(
        request=slots.RequestExtension(
            environment=facts.environment,
            request_id=origin.request_id,
            timestamp=iso_utc(origin.at_ms),
            trace_id=origin.trace_id,
            span_id=span_id_of(origin.request_id),
        ),
        agent=_agent(origin),
        http=None
        if origin.headers is None
        else slots.HttpExtension(
            headers={name.lower(): text for name, text in origin.headers.items()}
        ),
        security=slots.SecurityExtension(
            labels=origin.labels,
            classification=facts.classification(origin.properties.get("project_id")),
            subject=origin.subject,
            objects=dict(origin.objects or {}),
            data=dict(origin.data or {}),
        ),
        delegation=_delegation(origin),
        mcp=mcp,
        completion=completion,
        provenance=slots.ProvenanceExtension(
            source=origin.source, message_id=origin.message_id, parent_id=origin.parent_id
        ),
        llm=_model(origin, facts),
        framework=slots.FrameworkExtension(
            framework=FRAMEWORK,
            framework_version=facts.version,
            node_id=None if origin.agent is None else "/".join(origin.agent.path),
        ),
        meta=slots.MetaExtension(
            tags=origin.tags,
            scope=origin.scope,
            properties=dict(origin.properties)
            if origin.model is None
            else {**origin.properties, "model_alias": origin.model},
        ),
        custom=custom,
    )


def _model(origin: CallOrigin, facts: HostFacts) -> slots.LLMExtension | None:
    if origin.model is None:
        return None
    known = facts.model(origin.model)
    if known is None:
        return slots.LLMExtension(model_id=origin.model)
    return slots.LLMExtension(
        model_id=known.model_id, provider=known.provider, capabilities=list(known.traits)
    )


def _agent(origin: CallOrigin) -> slots.AgentExtension | None:
    place = origin.agent
    if place is None:
        return None
    return slots.AgentExtension(
        input=place.input,
        session_id=place.session_id,
        conversation_id=place.session_id,
        turn=place.turn,
        agent_id="/".join(place.path),
        parent_agent_id="/".join(place.path[:-1]) or None,
    )


def _delegation(origin: CallOrigin) -> slots.DelegationExtension | None:
    """Return the chain: the subject set the root agent to work, that one the next, and so on."""
    if origin.subject is None or origin.agent is None:
        return None
    place = origin.agent
    started = [*place.started_ms, *[origin.at_ms] * (len(place.path) - len(place.started_ms))]
    hops = [
        slots.DelegationHop(
            subject_id=origin.subject.id,
            subject_type=origin.subject.type.value,
            audience=place.path[0],
            timestamp=_moment(started[0]),
            strategy="session",
        )
    ]
    hops += [
        slots.DelegationHop(
            subject_id="/".join(place.path[:depth]),
            subject_type=slots.SubjectType.AGENT.value,
            audience="/".join(place.path[: depth + 1]),
            timestamp=_moment(started[depth]),
            strategy="subagent",
        )
        for depth in range(1, len(place.path))
    ]
    return slots.DelegationExtension(
        chain=tuple(hops),
        depth=len(hops),
        origin_subject_id=origin.subject.id,
        actor_subject_id="/".join(place.path),
        delegated=True,
        age_seconds=max(0.0, (origin.at_ms - started[0]) / 1000),
    )


def _moment(ts_ms: int) -> datetime:
    return datetime.fromtimestamp(ts_ms / 1000, tz=UTC)
