"""Extensions to test with: one container with every slot full, and strategies for any."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from kaged.pipeline import (
    AgentExtension,
    Capability,
    CompletionExtension,
    ConversationContext,
    DataPolicy,
    DelegationExtension,
    DelegationHop,
    Extensions,
    FrameworkExtension,
    HttpExtension,
    LLMExtension,
    MCPExtension,
    MetaExtension,
    ObjectSecurityProfile,
    ProvenanceExtension,
    RequestExtension,
    RetentionPolicy,
    SecurityExtension,
    StopReason,
    SubjectExtension,
    SubjectType,
    TokenUsage,
    ToolMetadata,
)

ALL_CAPABILITIES = frozenset(str(capability) for capability in Capability)
NO_CAPABILITIES: frozenset[str] = frozenset()
SLOT_NAMES = tuple(Extensions.model_fields)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

capability_sets = st.frozensets(st.sampled_from(sorted(ALL_CAPABILITIES)))
words = st.text(alphabet="abcdefghij-", min_size=1, max_size=6)
texts = st.none() | words
label_sets = st.frozensets(words, max_size=4)
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
custom_dicts = st.none() | st.dictionaries(words, plain_data, max_size=4)
header_maps = st.dictionaries(words, words, max_size=4)
hops = st.builds(
    DelegationHop,
    subject_id=words,
    subject_type=st.sampled_from(["user", "agent"]),
    scopes_granted=st.tuples() | st.tuples(words),
    timestamp=st.just(MOMENT),
)
subjects = st.builds(
    SubjectExtension,
    id=words,
    type=st.sampled_from(SubjectType),
    roles=label_sets,
    permissions=label_sets,
    teams=label_sets,
    claims=header_maps,
)
securities = st.builds(
    SecurityExtension,
    labels=label_sets,
    classification=texts,
    subject=st.none() | subjects,
    objects=st.dictionaries(
        words, st.builds(ObjectSecurityProfile, permissions=st.lists(words, max_size=2)), max_size=2
    ),
    data=st.dictionaries(
        words, st.builds(DataPolicy, apply_labels=st.lists(words, max_size=2)), max_size=2
    ),
)


@st.composite
def delegations(draw: st.DrawFn) -> DelegationExtension:
    """Draw a delegation whose derived fields follow from its chain, as the host fills it."""
    chain = tuple(draw(st.lists(hops, max_size=3)))
    return DelegationExtension(
        chain=chain,
        depth=len(chain),
        origin_subject_id=chain[0].subject_id if chain else None,
        actor_subject_id=chain[-1].subject_id if chain else None,
        delegated=bool(chain),
        age_seconds=draw(st.floats(0, 1000)),
    )


extensions = st.builds(
    Extensions,
    request=st.none() | st.builds(RequestExtension, environment=texts, request_id=texts),
    agent=st.none() | st.builds(AgentExtension, session_id=texts, turn=st.none() | st.integers()),
    http=st.none() | st.builds(HttpExtension, headers=header_maps),
    security=st.none() | securities,
    delegation=st.none() | delegations(),
    mcp=st.none() | st.builds(MCPExtension, tool=st.none() | st.builds(ToolMetadata, name=words)),
    completion=st.none() | st.builds(CompletionExtension, model=texts),
    provenance=st.none() | st.builds(ProvenanceExtension, source=texts, parent_id=texts),
    llm=st.none() | st.builds(LLMExtension, model_id=texts, capabilities=st.lists(words)),
    framework=st.none()
    | st.builds(FrameworkExtension, metadata=st.dictionaries(words, plain_data, max_size=2)),
    meta=st.none() | st.builds(MetaExtension, tags=label_sets, properties=header_maps),
    custom=custom_dicts,
)


def full_extensions(**changes: Any) -> Extensions:
    """Return a container whose twelve slots are all filled, nested parts included."""
    slots: dict[str, Any] = {
        "request": RequestExtension(
            environment="production",
            request_id="req-1",
            timestamp="2026-01-01T00:00:00Z",
            trace_id="trace-1",
            span_id="span-1",
        ),
        "agent": AgentExtension(
            input="do it",
            session_id="ses-1",
            conversation_id="con-1",
            turn=3,
            agent_id="coder",
            parent_agent_id="lead",
            conversation=ConversationContext(history=[{"role": "user"}], topics=["money"]),
        ),
        "http": HttpExtension(headers={"authorization": "Bearer abc", "x-tenant": "t1"}),
        "security": SecurityExtension(
            labels=frozenset({"pii", "confidential"}),
            classification="restricted",
            subject=SubjectExtension(
                id="alice",
                type=SubjectType.USER,
                roles=frozenset({"admin"}),
                permissions=frozenset({"db.read"}),
                teams=frozenset({"payroll"}),
                claims={"iss": "idp"},
            ),
            objects={"db": ObjectSecurityProfile(permissions=["db.read"], data_scope=["salary"])},
            data={
                "db": DataPolicy(
                    apply_labels=["pii"],
                    allowed_actions=["read"],
                    denied_actions=["export"],
                    retention=RetentionPolicy(max_age_seconds=60),
                )
            },
        ),
        "delegation": DelegationExtension(
            chain=(
                DelegationHop(
                    subject_id="alice",
                    subject_type="user",
                    scopes_granted=("db.read",),
                    timestamp=MOMENT,
                ),
            ),
            depth=1,
            origin_subject_id="alice",
            actor_subject_id="alice",
            delegated=True,
            age_seconds=2.0,
        ),
        "mcp": MCPExtension(
            tool=ToolMetadata(
                name="db.query",
                input_schema={"type": "object", "properties": {"q": {"type": "string"}}},
                annotations={"net": False},
            )
        ),
        "completion": CompletionExtension(
            stop_reason=StopReason.END,
            tokens=TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3),
            model="m-1",
            latency_ms=12,
        ),
        "provenance": ProvenanceExtension(source="user", message_id="m1", parent_id="m0"),
        "llm": LLMExtension(model_id="m-1", provider="p", capabilities=["tools"]),
        "framework": FrameworkExtension(framework="kaged", metadata={"nested": {"list": [1, 2]}}),
        "meta": MetaExtension(
            tags=frozenset({"batch"}), scope="project", properties={"owner": "ops"}
        ),
        "custom": {"trace": "abc", "nested": {"list": [1, {"deep": True}]}},
    }
    return Extensions(**{**slots, **changes})
