"""The twelve slots of `Extensions`, each a frozen model; pure values without behaviour."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from kaged.base.clock import SystemClock
from kaged.pipeline.lazy_slots import LazySlot, Slot
from kaged.pipeline.shapes import Frozen


class RequestExtension(Slot):
    """Where and when the request was made, and how to find it in traces."""

    environment: str | None = None
    request_id: str | None = None
    timestamp: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class HttpExtension(Slot):
    """HTTP headers; the host fills names in lower case, names from plugins stay as written."""

    headers: dict[str, str] = Field(default_factory=dict)


class ProvenanceExtension(Slot):
    """Where the message came from and which message it answers."""

    source: str | None = None
    message_id: str | None = None
    parent_id: str | None = None


class FrameworkExtension(Slot):
    """The agentic framework that drives the call, and where in its graph it stands."""

    framework: str | None = None
    framework_version: str | None = None
    node_id: str | None = None
    graph_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class MetaExtension(Slot):
    """Operational metadata given by the host."""

    tags: frozenset[str] = frozenset()
    scope: str | None = None
    properties: dict[str, str] = Field(default_factory=dict)


MAX_HISTORY = 100
"""Messages of history that a conversation context may carry."""


class ConversationContext(LazySlot):
    """What was said before, shortened: recent messages, a summary and topics."""

    history: list[Any] = Field(default_factory=list, max_length=MAX_HISTORY)
    summary: str | None = None
    topics: list[str] = Field(default_factory=list)


class AgentExtension(Slot):
    """Which agent acts, in which session and turn, on whose behalf."""

    input: str | None = None
    session_id: str | None = None
    conversation_id: str | None = None
    turn: int | None = None
    agent_id: str | None = None
    parent_agent_id: str | None = None
    conversation: ConversationContext | None = None


class SubjectType(StrEnum):
    """What kind of party a subject is."""

    USER = "user"
    AGENT = "agent"
    SERVICE = "service"
    SYSTEM = "system"


class SubjectExtension(Slot):
    """The authenticated party behind the call."""

    id: str
    type: SubjectType
    roles: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    claims: dict[str, str] = Field(default_factory=dict)


class ObjectSecurityProfile(Slot):
    """What it takes to use one object, and who enforces that."""

    managed_by: str = "host"
    permissions: list[str] = Field(default_factory=list)
    trust_domain: str | None = None
    data_scope: list[str] = Field(default_factory=list)


class RetentionPolicy(Slot):
    """How long data may be kept."""

    max_age_seconds: int | None = None
    policy: str = "persistent"
    delete_after: str | None = None


class DataPolicy(Slot):
    """What may be done with data of one source; `allowed_actions` None means unrestricted."""

    apply_labels: list[str] = Field(default_factory=list)
    allowed_actions: list[str] | None = None
    denied_actions: list[str] = Field(default_factory=list)
    retention: RetentionPolicy | None = None


class SecurityExtension(LazySlot):
    """Labels that only grow, the subject, and the rules of objects and data."""

    labels: frozenset[str] = frozenset()
    classification: str | None = None
    subject: SubjectExtension | None = None
    objects: dict[str, ObjectSecurityProfile] = Field(default_factory=dict)
    data: dict[str, DataPolicy] = Field(default_factory=dict)


_CLOCK = SystemClock()


def _now() -> datetime:
    # Plugins build hops with the default timestamp inside their own code, where no clock of the
    # host can be passed in.
    return datetime.fromtimestamp(_CLOCK.now_ms() / 1000, tz=UTC)


class DelegationHop(Slot):
    """One step of a delegation: who acts, towards whom, with which scopes and for how long."""

    subject_id: str
    subject_type: str
    audience: str | None = None
    scopes_granted: tuple[str, ...] = ()
    timestamp: datetime = Field(default_factory=_now)
    ttl_seconds: int | None = None
    strategy: str | None = None
    from_cache: bool = False


class DelegationExtension(Slot):
    """The chain and what follows from it; `depth` and `delegated` are derived by the host."""

    chain: tuple[DelegationHop, ...] = ()
    depth: int = 0
    origin_subject_id: str | None = None
    actor_subject_id: str | None = None
    delegated: bool = False
    age_seconds: float = 0.0

    def with_new_hop(self, hop: DelegationHop) -> DelegationExtension:
        """Return a new extension whose chain ends with `hop`."""
        start = self.chain[0].timestamp if self.chain else None
        if start is not None and start.tzinfo is None:
            start = start.replace(tzinfo=UTC)
        chain = (*self.chain, hop)
        # Wall time may have gone back since, or the first hop was made where it is ahead.
        age_s = 0.0 if start is None else max(0.0, (_now() - start).total_seconds())
        return DelegationExtension(
            chain=chain,
            depth=len(chain),
            origin_subject_id=self.origin_subject_id or hop.subject_id,
            actor_subject_id=hop.subject_id,
            delegated=True,
            age_seconds=age_s,
        )


class ToolMetadata(LazySlot):
    """What is declared about a tool."""

    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    server_id: str | None = None
    namespace: str | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)


class ResourceMetadata(LazySlot):
    """What is declared about a resource."""

    uri: str
    name: str | None = None
    description: str | None = None
    mime_type: str | None = None
    server_id: str | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)


class PromptMetadata(LazySlot):
    """What is declared about a prompt."""

    name: str
    description: str | None = None
    arguments: list[dict[str, Any]] | None = None
    server_id: str | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)


class MCPExtension(Slot):
    """The one of tool, resource and prompt that is called."""

    tool: ToolMetadata | None = None
    resource: ResourceMetadata | None = None
    prompt: PromptMetadata | None = None


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    RETURN = "return"
    CALL = "call"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"


class TokenUsage(Slot):
    """What a completion cost in tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class CompletionExtension(Slot):
    """How a completion ended, what it used and how long it took."""

    stop_reason: StopReason | None = None
    tokens: TokenUsage | None = None
    model: str | None = None
    raw_format: str | None = None
    created_at: str | None = None
    latency_ms: int | None = None


class LLMExtension(Slot):
    """Which model is asked, and what it can do."""

    model_id: str | None = None
    provider: str | None = None
    capabilities: list[str] = Field(default_factory=list)


class Extensions(Frozen):  # noqa: PLW1641 - pydantic adds the hash of a frozen model
    """Typed context of one call; every slot is optional.

    Frozen: `model_copy(update={...})` returns a changed copy (it does not validate the update).
    Only the host fills it; what a plugin gives back passes `merge_extensions` first.
    """

    request: RequestExtension | None = None
    agent: AgentExtension | None = None
    http: HttpExtension | None = None
    security: SecurityExtension | None = None
    delegation: DelegationExtension | None = None
    mcp: MCPExtension | None = None
    completion: CompletionExtension | None = None
    provenance: ProvenanceExtension | None = None
    llm: LLMExtension | None = None
    framework: FrameworkExtension | None = None
    meta: MetaExtension | None = None
    custom: dict[str, Any] | None = None

    def __eq__(self, other: object) -> bool:
        # By slots, not by class: a plugin's view is an instance of a private subclass.
        if not isinstance(other, Extensions):
            return NotImplemented
        return self.__dict__ == other.__dict__
