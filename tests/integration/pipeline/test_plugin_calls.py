"""Method calls of real caged plugins on their way through the pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.kernel.decision import CapabilityDenied
from kaged.pipeline import (
    Extensions,
    PipelineNotReady,
    Plugin,
    PluginConfig,
    PluginError,
    PluginResult,
    PluginViolation,
    PluginViolationError,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.auditing import PipelineAudit
from kaged.pipeline.pipeline import Pipeline
from kaged.pipeline.policies import EgressGuard
from kaged.pipeline.remote import NotSendable
from kaged.plugins.hooked_method import describe_method
from kaged.plugins.supervisor import PluginSupervisor
from kaged.wire.errors import MethodNotFound
from requirements import requirement
from unit.pipeline.lab import Lab, entry
from unit.pipeline.material import ALL_CAPABILITIES

PRE, POST = "tool_pre_invoke", "tool_post_invoke"
BOTH = [PRE, POST]
ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"result": "from c.d"}]}}


class Host:
    """A plugin host with one caged plugin that echoes, and pipelines around its calls."""

    def __init__(self, lab: PluginLab) -> None:
        self.lab = lab
        self.supervisor = PluginSupervisor(lab.parts)
        self.pipelines: list[Pipeline] = []

    async def start(self, **manifest: Any) -> None:
        self.supervisor.register(self.lab.install(ECHO, **manifest))
        await self.supervisor.start_all(["stub"])

    async def police(
        self, *entries: tuple[Callable[[PluginConfig], Plugin], dict[str, Any]]
    ) -> Pipeline:
        lab = await Lab.of(
            *entries,
            clock=self.lab.parts.clock,
            observer=PipelineAudit(self.lab.parts.audit.post),
        )
        self.lab.parts.active_pipeline.pipeline = lab.pipeline
        self.pipelines.append(lab.pipeline)
        return lab.pipeline

    async def call(self, method: str = "a.b", **params: Any) -> Any:
        return await self.supervisor.call("stub", method, params, self.lab.context())

    async def calls(self) -> int:
        """Count how often the plugin itself was called."""
        return len(await self.lab.seen("plugin.method_called"))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    lab = PluginLab(tmp_path)
    await lab.open()
    made = Host(lab)
    await made.start()
    yield made
    for pipeline in made.pipelines:
        await pipeline.close()
    await made.supervisor.stop_all()
    await lab.close()


class Denies(Plugin):
    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: Any
    ) -> PluginResult[Any] | None:
        if (payload.args or {}).get("danger"):
            return PluginResult(
                continue_processing=False,
                violation=PluginViolation("not that", "nobody does that", "DANGER"),
            )
        return None


class Counts(Plugin):
    seen = 0

    async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
        type(self).seen += 1


@requirement("EX-HOOK-04")
async def test_a_denial_keeps_the_method_from_running_and_later_plugins_from_being_called(
    host: Host,
) -> None:
    Counts.seen = 0
    await host.police(entry(Denies), entry(Counts))
    with pytest.raises(CapabilityDenied, match="not that") as raised:
        await host.call(danger=True)
    assert "Denies0" in raised.value.message
    assert raised.value.fix
    assert (Counts.seen, await host.calls()) == (0, 0)
    (denied,) = await host.lab.seen("pipeline.plugin_denied")
    assert denied[1]["plugin"] == "Denies0"
    assert denied[1]["violation_code"] == "DANGER"
    # The default is to go on: the same plugins let another call through.
    assert (await host.call(danger=False))["danger"] is False
    assert (Counts.seen, await host.calls()) == (1, 1)


async def test_a_raised_refusal_is_a_denial_like_a_returned_one(host: Host) -> None:
    class Raises(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            raise PluginViolationError("stop", PluginViolation("no way", "d", "NO"))

    class OddlyRaises(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            odd: Any = {"reason": 7}
            raise PluginViolationError("odd", odd)

    await host.police(entry(Raises))
    with pytest.raises(CapabilityDenied, match="no way"):
        await host.call()
    await host.police(entry(OddlyRaises))
    with pytest.raises(CapabilityDenied, match="odd"):
        await host.call()
    assert await host.calls() == 0
    assert len(await host.lab.seen("pipeline.plugin_denied")) == 2


async def test_a_changed_call_runs_as_changed_and_is_on_record(host: Host) -> None:
    class Edits(Plugin):
        async def tool_pre_invoke(
            self, payload: ToolPreInvokePayload, context: Any
        ) -> PluginResult[Any]:
            args = {**(payload.args or {}), "limit": 10}
            return PluginResult(modified_payload=payload.model_copy(update={"args": args}))

        async def tool_post_invoke(
            self, payload: ToolPostInvokePayload, context: Any
        ) -> PluginResult[Any]:
            result = {**payload.result, "seen_by": context.global_context.request_id}
            return PluginResult(modified_payload=payload.model_copy(update={"result": result}))

    await host.police(entry(Edits, hooks=BOTH))
    found = await host.call(q="x")
    assert (found["q"], found["limit"]) == ("x", 10)
    assert found["seen_by"] == found["_context"]["request_id"]
    ((_, event),) = await host.lab.seen("pipeline.call_changed")
    assert event == {
        "plugin": "Edits0",
        "hook": PRE,
        "tool_name": "stub.a.b",
        "changed": ["args"],
        "outcome": "resolved",
    }


class Renames(Plugin):
    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: Any
    ) -> PluginResult[Any]:
        name = str((payload.args or {}).get("to"))
        return PluginResult(modified_payload=payload.model_copy(update={"name": name}))


async def test_a_renamed_call_is_resolved_again_and_runs_no_plugin_twice(host: Host) -> None:
    Counts.seen = 0
    await host.police(entry(Renames), entry(Counts))
    assert await host.call(to="stub.c.d") == "from c.d"
    assert Counts.seen == 1
    for name in ("stub.e.f", "other.a.b", "a.b", "stub.shutdown", ""):
        with pytest.raises(MethodNotFound):
            await host.call(to=name)
    assert await host.calls() == 1
    events = [data for _, data in await host.lab.seen("pipeline.call_changed")]
    assert [event["outcome"] for event in events] == ["resolved", *["refused"] * 5]
    assert events[0]["new_tool_name"] == "stub.c.d"


async def test_what_is_no_method_never_reaches_the_pipeline(host: Host) -> None:
    Counts.seen = 0
    await host.police(entry(Counts))
    with pytest.raises(MethodNotFound):
        await host.call("x.y")
    assert Counts.seen == 0


async def test_labels_and_memory_go_from_before_the_call_to_after_it(host: Host) -> None:
    seen: dict[str, Any] = {}

    class Labels(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            assert extensions.security is not None
            context.set_state("asked", payload.args)
            grown = extensions.security.model_copy(
                update={"labels": extensions.security.labels | {"pii"}}
            )
            return PluginResult(
                modified_extensions=extensions.model_copy(update={"security": grown})
            )

        async def tool_post_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen["asked"] = context.get_state("asked")

    class Watches(Plugin):
        async def tool_post_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> None:
            assert extensions.security is not None
            seen["labels"] = extensions.security.labels

    await host.police(
        entry(Labels, "append_labels", hooks=BOTH), entry(Watches, "read_labels", hooks=[POST])
    )
    await host.call(q=1)
    assert seen == {"asked": {"q": 1}, "labels": frozenset({"pii"})}


@requirement("EX-AMB-18")
async def test_both_events_carry_extensions_filled_from_what_the_host_knows(host: Host) -> None:
    seen: dict[str, tuple[Any, Extensions]] = {}

    class Looks(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen[PRE] = (context.global_context.user, extensions.model_copy(deep=True))

        async def tool_post_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen[POST] = (payload.result, extensions.model_copy(deep=True))

    await host.police(entry(Looks, *ALL_CAPABILITIES, hooks=BOTH))
    context = host.lab.context(
        project_id="music", agent_path="primary.subagents.reader", session_id="ses_1"
    )
    forged: dict[str, Any] = {"extensions": {"custom": {}}, "security": {"subject": {"id": "root"}}}
    await host.supervisor.call("stub", "a.b", {"q": 1, **forged}, context)
    assert set(seen) == {PRE, POST}
    for _, ext in seen.values():
        assert ext.request is not None
        assert ext.request.request_id == context.request_id
        assert ext.security is not None
        assert ext.security.subject is not None
        assert (ext.security.subject.id, ext.security.subject.type) == ("op", "user")
        assert ext.agent is not None
        assert (ext.agent.session_id, ext.agent.agent_id) == ("ses_1", "primary/reader")
        assert ext.agent.parent_agent_id == "primary"
        assert ext.delegation is not None
        assert [hop.subject_id for hop in ext.delegation.chain] == ["op", "primary"]
        assert ext.mcp is not None
        assert ext.mcp.tool is not None
        assert (ext.mcp.tool.name, ext.mcp.tool.server_id) == ("stub.a.b", "stub")
        assert ext.mcp.tool.annotations == {"net": False}
        assert ext.provenance is not None
        assert ext.provenance.source == "agent"
        assert ext.meta is not None
        assert ext.meta.properties == {"project_id": "music"}
        assert ext.framework is not None
        assert ext.framework.framework == "kaged"
        assert ext.http is None
        assert ext.custom is None
    assert seen[PRE][0] == "op"
    assert seen[POST][0]["q"] == 1
    # A hook that no method is there for is refused when the plugin is loaded.
    with pytest.raises(AssertionError, match="tool_pre_invok"):
        await host.police(entry(Looks, hooks=["tool_pre_invok"]))


async def test_labelled_data_does_not_leave_through_a_plugin_with_network(host: Host) -> None:
    class Labels(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> Any:
            grown = extensions.security.model_copy(update={"labels": frozenset({"pii"})})
            return PluginResult(
                modified_extensions=extensions.model_copy(update={"security": grown})
            )

    labelled = entry(Labels, "append_labels", priority=1)
    await host.police(labelled, entry(EgressGuard, "read_labels"))
    assert (await host.call(q=1))["q"] == 1  # its cage has no network, and the host says so
    out = entry(EgressGuard, "read_labels", config={"tools": ["stub.*"]})
    await host.police(labelled, out)
    with pytest.raises(CapabilityDenied, match="pii"):
        await host.call()
    assert await host.calls() == 1
    netted = host.lab.plugin(
        host.lab.install(name="netted", capabilities=["net:api.example.com:443"])
    )
    assert describe_method(netted, "a.b").annotations == {"net": True}


async def test_a_result_without_a_json_form_is_an_error_and_not_handed_on(host: Host) -> None:
    class Odd(Plugin):
        async def tool_post_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(modified_payload=payload.model_copy(update={"result": object()}))

    await host.police(entry(Odd, hooks=[POST]))
    with pytest.raises((NotSendable, PluginError)):
        await host.call()


async def test_a_failing_policy_plugin_ends_the_call_unless_told_otherwise(host: Host) -> None:
    class Breaks(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            raise ValueError("boom")

    await host.police(entry(Breaks))
    with pytest.raises(PluginError, match="boom"):
        await host.call()
    assert await host.calls() == 0
    await host.police(entry(Breaks, on_error="ignore"))
    assert (await host.call(q=1))["q"] == 1
    failed = [data for _, data in await host.lab.seen("pipeline.plugin_failed")]
    assert [data["on_error"] for data in failed] == ["fail", "ignore"]


async def test_no_call_slips_by_while_the_policy_plugins_start(host: Host) -> None:
    clock, ids = host.lab.parts.clock, host.lab.parts.ids
    pipeline = Pipeline(clock, ids, refuse_until_loaded=True)
    host.lab.parts.active_pipeline.pipeline = pipeline
    with pytest.raises(PipelineNotReady, match="until the pipeline's plugins have started"):
        await host.call()
    assert await host.calls() == 0
    await pipeline.load_configs([])
    assert (await host.call(q=1))["q"] == 1
    await pipeline.close()


async def test_without_hooks_for_calls_the_plugin_is_called_as_if_there_were_no_pipeline(
    host: Host,
) -> None:
    class Elsewhere(Plugin):
        async def agent_pre_invoke(self, payload: Any, context: Any) -> None:
            raise AssertionError("not this one")

    await host.police(entry(Elsewhere, hooks=["agent_pre_invoke"]))
    assert (await host.call(q=1))["q"] == 1
