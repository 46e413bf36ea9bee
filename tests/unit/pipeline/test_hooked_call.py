from __future__ import annotations

import copy
from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.kernel.call_facts import Arrival, ModelIdentity
from kaged.kernel.decision import CapabilityDenied
from kaged.kernel.describe import require
from kaged.pipeline import (
    CompletionExtension,
    Extensions,
    HttpExtension,
    LLMExtension,
    MCPExtension,
    PipelineNotReady,
    Plugin,
    PluginResult,
    PluginViolation,
    PromptMetadata,
    ResourceMetadata,
    SecurityExtension,
    StopReason,
    SubjectType,
    TokenUsage,
    ToolMetadata,
    parse_document,
)
from kaged.pipeline.hooked_call import HookedCall
from kaged.pipeline.host_facts import HostFacts
from kaged.pipeline.origin import AgentPlace, CallOrigin, fill_slots, subject_of
from kaged.pipeline.payloads.messages import Message, Role, TextContent
from requirements import requirement
from unit.pipeline.lab import Lab, entry
from unit.pipeline.material import ALL_CAPABILITIES

TOOL = ToolMetadata(name="db.query", annotations={"net": False})
ORIGIN = CallOrigin(
    request_id="req-1",
    at_ms=1_767_225_605_000,
    arrival=Arrival("t1", (("authorization", "Bearer x"), ("x-tenant", "t"))),
    subject=subject_of(None, "alice").model_copy(
        update={
            "roles": frozenset({"admin"}),
            "teams": frozenset({"payroll"}),
            "claims": {"iss": "idp"},
        }
    ),
    agent=AgentPlace(
        session_id="ses-1",
        path=("lead", "coder", "tester"),
        started_ms=(1_767_225_600_000,),
        turn=2,
        input="fix it",
    ),
    labels=frozenset({"pii"}),
    source="user",
    message_id="m2",
    parent_id="m1",
    tags=frozenset({"batch"}),
    scope="project-1",
    properties={"owner": "ops"},
    model="quick",
)
FACTS = HostFacts(
    "production",
    "1.0",
    lambda project_id: f"class of {project_id}",
    lambda alias: ModelIdentity(alias, "m", "p", ("cheap",)),
)


def test_slots_are_filled_from_verified_facts() -> None:
    ext = fill_slots(ORIGIN, FACTS)
    assert ext.request is not None
    assert (ext.request.environment, ext.request.trace_id) == ("production", "t1")
    assert (ext.request.request_id, ext.request.timestamp) == ("req-1", "2026-01-01T00:00:05.000Z")
    assert ext.http == HttpExtension(headers={"authorization": "Bearer x", "x-tenant": "t"})
    assert ext.security is not None
    assert ext.security.labels == frozenset({"pii"})
    assert ext.security.subject is not None
    assert (ext.security.subject.id, ext.security.subject.type) == ("alice", SubjectType.USER)
    assert ext.security.subject.claims == {"iss": "idp"}
    assert ext.agent is not None
    assert (ext.agent.agent_id, ext.agent.parent_agent_id, ext.agent.turn) == (
        "lead/coder/tester",
        "lead/coder",
        2,
    )
    assert ext.provenance is not None
    assert (ext.provenance.message_id, ext.provenance.parent_id) == ("m2", "m1")
    assert ext.framework is not None
    assert (ext.framework.framework, ext.framework.node_id) == ("kaged", "lead/coder/tester")
    assert ext.meta is not None
    assert ext.meta.properties == {"owner": "ops", "model_alias": "quick"}
    assert ext.llm == LLMExtension(model_id="m", provider="p", capabilities=["cheap"])
    assert ext.security.classification == "class of None"
    assert ext.framework.framework_version == "1.0"


def test_the_chain_leads_from_the_subject_through_every_agent() -> None:
    delegation = fill_slots(ORIGIN).delegation
    assert delegation is not None
    assert [(hop.subject_id, hop.audience) for hop in delegation.chain] == [
        ("alice", "lead"),
        ("lead", "lead/coder"),
        ("lead/coder", "lead/coder/tester"),
    ]
    assert (delegation.depth, delegation.origin_subject_id) == (3, "alice")
    assert (delegation.actor_subject_id, delegation.age_seconds) == ("lead/coder/tester", 5.0)


def test_what_is_not_known_stays_empty() -> None:
    ext = fill_slots(CallOrigin(request_id="r", at_ms=0))
    assert (ext.agent, ext.http, ext.delegation, ext.mcp, ext.llm) == (None,) * 5
    assert ext.security == SecurityExtension()
    lonely = fill_slots(CallOrigin("r", 0, agent=AgentPlace("s", ("lead",))))
    assert lonely.delegation is None
    assert lonely.agent is not None
    assert lonely.agent.parent_agent_id is None


class Denies(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
        return PluginResult(
            continue_processing=False, violation=PluginViolation("not today", "d", "c")
        )


class Background(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any) -> None: ...


async def test_a_refusal_is_a_value_that_names_the_plugin() -> None:
    lab = await Lab.of(
        entry(Denies, name="guard"), entry(Background, name="bg", mode="fire_and_forget")
    )
    passed = await HookedCall(lab.pipeline, ORIGIN).before_tool("db.query", {"q": 1}, TOOL)
    assert not passed.decision.allowed
    assert "guard" in passed.decision.detail
    assert "not today" in passed.decision.detail
    assert passed.violation is not None
    with pytest.raises(CapabilityDenied, match="not today"):
        require(passed.decision, passed.refusal)
    await lab.pipeline.close()


async def test_a_denial_without_a_reason_is_a_denial() -> None:
    class Silent(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(continue_processing=False)

    lab = await Lab.of(entry(Silent))
    passed = await HookedCall(lab.pipeline, ORIGIN).before_tool("db.query", {}, TOOL)
    assert not passed.decision.allowed
    assert "no reason" in passed.decision.detail


async def test_a_changed_call_comes_back_with_who_changed_it() -> None:
    class Renames(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(
                modified_payload=payload.model_copy(update={"args": {"q": self.name}})
            )

    lab = await Lab.of(entry(Renames, name="a"), entry(Renames, name="b"))
    passed = await HookedCall(lab.pipeline, ORIGIN).before_tool("db.query", {"q": 1}, TOOL)
    assert passed.decision.allowed
    assert passed.changed
    assert passed.changed_by == ("a", "b")
    assert passed.payload.args == {"q": "b"}
    assert passed.payload.headers is not None, "the host's header map stays with the call"


async def test_a_denial_with_a_delay_tells_the_caller_when_to_try_again() -> None:
    class Busy(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> Any:
            violation = PluginViolation("busy", "Too many at once.", "BUSY")
            return PluginResult(
                continue_processing=False, violation=violation, retry_delay_ms=payload.args["ms"]
            )

    lab = await Lab.of(entry(Busy, name="busy"))
    for delay_ms, fix in ((1500, "try again in 1.5 s"), (0, "ask the operator")):
        outcome = await HookedCall(lab.pipeline, ORIGIN).before_tool("t", {"ms": delay_ms}, TOOL)
        assert outcome.refusal is not None
        assert outcome.refusal.words == "the policy busy refused: busy (Too many at once.)"
        assert outcome.retry_after_s == (2 if delay_ms else None)
        assert outcome.refusal.fix.startswith(fix)


async def test_memory_labels_and_extensions_go_from_before_to_after() -> None:
    seen: list[Any] = []

    class Labels(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> Any:
            context.set_state("n", 1)
            security = extensions.security
            grown = security.model_copy(update={"labels": security.labels | {"seen"}})
            return PluginResult(
                modified_extensions=extensions.model_copy(update={"security": grown}),
            )

        async def tool_post_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen.append((context.get_state("n"), extensions.security.labels, extensions.mcp.tool))

    lab = await Lab.of(
        entry(Labels, "append_labels", hooks=["tool_pre_invoke", "tool_post_invoke"])
    )
    hooked = HookedCall(lab.pipeline, ORIGIN)
    assert hooked.extensions is None
    assert hooked.labels == frozenset({"pii"})
    before = await hooked.before_tool("db.query", {}, TOOL)
    assert not before.changed
    assert hooked.labels == frozenset({"pii", "seen"})
    after = await hooked.after_tool("db.query", {"rows": 1}, TOOL)
    assert after.payload.result == {"rows": 1}
    assert seen == [(1, frozenset({"pii", "seen"}), TOOL)]
    assert isinstance(hooked.extensions, Extensions)


@requirement("EX-AMB-20")
async def test_arguments_and_results_cannot_supply_slots() -> None:
    seen: list[Extensions] = []

    class Watch(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen.append(copy.deepcopy(extensions))

        async def tool_post_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen.append(copy.deepcopy(extensions))

    evil = {
        "extensions": {"http": {"headers": {"evil": "1"}}, "custom": {"evil": 1}},
        "security": {"subject": {"id": "root", "type": "system"}, "labels": []},
        "headers": {"authorization": "evil"},
    }
    hooks = ["tool_pre_invoke", "tool_post_invoke"]
    lab = await Lab.of(entry(Watch, *ALL_CAPABILITIES, hooks=hooks))
    hooked = HookedCall(lab.pipeline, ORIGIN)
    before = await hooked.before_tool("db.query", evil, TOOL)
    after = await hooked.after_tool("db.query", evil, TOOL)
    expected = fill_slots(ORIGIN, mcp=MCPExtension(tool=TOOL))
    assert seen == [expected, expected]
    assert before.payload.args == evil
    assert after.payload.result == evil
    assert hooked.labels == ORIGIN.labels


async def test_every_kind_of_call_passes_its_hooks_with_its_slots() -> None:
    seen: dict[str, Extensions] = {}
    hooks = [
        "prompt_pre_fetch",
        "prompt_post_fetch",
        "resource_pre_fetch",
        "resource_post_fetch",
        "agent_pre_invoke",
        "agent_post_invoke",
        "cmf_in",
    ]

    class Watch(Plugin):
        async def _note(self, payload: Any, context: Any, extensions: Any) -> None: ...

        def __getattr__(self, name: str) -> Any:
            if name not in hooks and not name.startswith("cmf."):
                raise AttributeError(name)

            async def note(payload: Any, context: Any, extensions: Any) -> None:
                seen[name] = copy.deepcopy(extensions)

            return note

    names = [*hooks[:-1], "cmf.llm_input", "cmf.llm_output"]
    lab = await Lab.of(entry(Watch, *ALL_CAPABILITIES, hooks=names))
    message = Message(role=Role.USER, content=[TextContent(text="hi")])
    usage = CompletionExtension(
        stop_reason=StopReason.END,
        tokens=TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3),
    )
    hooked = HookedCall(lab.pipeline, ORIGIN)
    prompt = PromptMetadata(name="p")
    resource = ResourceMetadata(uri="u")
    for passed in (
        await hooked.before_prompt("p", {"a": "b"}, prompt),
        await hooked.after_prompt("p", {"messages": []}, prompt),
        await hooked.before_resource("u", {}, resource),
        await hooked.after_resource("u", "content", resource),
        await hooked.before_agent("lead", [{"role": "user"}], tools=["t"], model="m"),
        await hooked.after_agent("lead", [], [{"name": "t"}]),
        await hooked.before_model(message),
        await hooked.after_model(message, usage),
    ):
        assert passed.decision.allowed
        assert not passed.changed
    assert set(seen) == set(names)
    assert seen["prompt_pre_fetch"].mcp is not None
    assert seen["prompt_pre_fetch"].mcp.prompt == prompt
    assert seen["resource_post_fetch"].mcp is not None
    assert seen["resource_post_fetch"].mcp.resource == resource
    assert seen["cmf.llm_input"].completion is None
    assert seen["cmf.llm_output"].completion == usage
    assert all(ext.llm == LLMExtension(model_id="quick") for ext in seen.values())


async def test_without_plugins_a_call_passes_untouched_and_unfilled() -> None:
    lab = await Lab.of()
    anonymous = HookedCall(lab.pipeline, CallOrigin("r", 0))
    passed = await anonymous.before_tool("t", {"a": 1}, TOOL)
    assert passed.payload.args == {"a": 1}
    assert passed.payload.headers is None
    assert anonymous.extensions is None
    assert anonymous.labels == frozenset()


async def test_a_faulty_policy_file_refuses_the_call() -> None:
    lab = await Lab.of(clock=ManualClock())
    await lab.pipeline.close()
    document = parse_document("plugins: 5\n", "policy.yaml")
    fresh = type(lab.pipeline)(ManualClock(), lab.pipeline._ids)
    await fresh.load(document)
    with pytest.raises(PipelineNotReady, match=r"policy\.yaml"):
        await HookedCall(fresh, ORIGIN).before_tool("t", {}, TOOL)
