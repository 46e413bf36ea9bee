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
from kaged.kernel.identity import SERVICE_PREFIX, Actor
from kaged.pipeline import slots

FRAMEWORK = "kaged"

_NO_TEXTS: frozenset[str] = frozenset()


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
    """Everything the host knows for certain about a call before it is made."""

    request_id: str
    at_ms: int
    environment: str | None = None
    subject: slots.SubjectExtension | None = None
    agent: AgentPlace | None = None
    labels: frozenset[str] = _NO_TEXTS
    classification: str | None = None
    headers: Mapping[str, str] | None = None
    source: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    tags: frozenset[str] = _NO_TEXTS
    scope: str | None = None
    properties: Mapping[str, str] = field(default_factory=_empty)
    model: slots.LLMExtension | None = None
    version: str | None = None


def subject_of(actor: Actor | None, name: str) -> slots.SubjectExtension:
    """Return whom a call is made for, with all that is known of them.

    `name` is who it is where nobody was authenticated.
    """
    if actor is None or actor.person_id is None:
        return slots.SubjectExtension(id=name, type=slots.SubjectType.USER)
    service = actor.person_id.startswith(SERVICE_PREFIX)
    return slots.SubjectExtension(
        id=actor.person_id,
        type=slots.SubjectType.SERVICE if service else slots.SubjectType.USER,
        roles=actor.roles,
        teams=actor.teams,
        claims=dict(actor.claims),
    )


def fill_slots(
    origin: CallOrigin,
    *,
    mcp: slots.MCPExtension | None = None,
    completion: slots.CompletionExtension | None = None,
    custom: dict[str, Any] | None = None,
) -> slots.Extensions:
    """Fill the slots for one call; slots about which nothing is known stay empty."""
    return slots.Extensions(
        request=slots.RequestExtension(
            environment=origin.environment,
            request_id=origin.request_id,
            timestamp=iso_utc(origin.at_ms),
            trace_id=origin.trace_id,
            span_id=origin.span_id,
        ),
        agent=_agent(origin),
        http=None
        if origin.headers is None
        else slots.HttpExtension(
            headers={name.lower(): text for name, text in origin.headers.items()}
        ),
        security=slots.SecurityExtension(
            labels=origin.labels,
            classification=origin.classification,
            subject=origin.subject,
        ),
        delegation=_delegation(origin),
        mcp=mcp,
        completion=completion,
        provenance=slots.ProvenanceExtension(
            source=origin.source, message_id=origin.message_id, parent_id=origin.parent_id
        ),
        llm=origin.model,
        framework=slots.FrameworkExtension(
            framework=FRAMEWORK,
            framework_version=origin.version,
            node_id=None if origin.agent is None else "/".join(origin.agent.path),
        ),
        meta=slots.MetaExtension(
            tags=origin.tags, scope=origin.scope, properties=dict(origin.properties)
        ),
        custom=custom,
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
