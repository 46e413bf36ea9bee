from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.tool_lab import Spy, ToolLab, cage, make_tool
from kaged.base import Ids, JsonObject, ManualClock
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.pipeline import (
    Extensions,
    Pipeline,
    Plugin,
    PluginResult,
    PluginViolation,
    ToolPreInvokePayload,
    parse_document,
)
from kaged.tools.explain import explain_call
from requirements import requirement
from unit.pipeline.lab import Lab, entry

RO = FsRequirement(FsMode.RO)
CODER = "primary.subagents.coder"
PRE, POST = "tool_pre_invoke", "tool_post_invoke"


def rewriting(**changes: Any) -> type[Plugin]:
    """Make a plugin that changes the call it sees."""

    class Rewrites(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(modified_payload=payload.model_copy(update=changes))

    return Rewrites


async def tool_lab(
    tmp_path: Path, spy: Spy, *plugins: Any, policy: Any = None, **fields: Any
) -> ToolLab:
    pipeline = (await Lab.of(*plugins)).pipeline
    for name in ("src", "data"):
        (tmp_path / name).mkdir(exist_ok=True)
    tools = [
        make_tool("file.peek", handler=spy, paths=["path"], required=["path"], requires=[RO],
                  properties={"limit": {"type": "integer", "default": 9}}),
        make_tool("file.other", handler=spy, paths=["path"], requires=[RO]),
        make_tool("kaged.ask", handler=spy, root_only=True),
    ]  # fmt: skip
    return ToolLab(
        tmp_path,
        tools,
        cage("ro ./src", root=tmp_path) if policy is None else policy,
        CODER,
        enabled=["file.peek", "kaged.ask"],
        pipeline=pipeline,
        **fields,
    )


@requirement("EX-AMB-22", "AT-DISP-21")
async def test_a_changed_call_is_decided_again_before_it_runs(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"args": {"path": "data/secret"}}, "capability_denied"),
        ({"args": {"path": "../outside"}}, "invalid_params"),
        ({"args": {"path": 7}}, "invalid_params"),
        ({"args": {"path": "src/a", "extra": 1}}, "invalid_params"),
        ({"args": {}}, "invalid_params"),
        ({"name": "file.other"}, "tool_not_found"),
        ({"name": "no.such"}, "tool_not_found"),
        ({"name": "kaged.ask", "args": {}}, "principal_scope_violation"),
    ]
    for changes, code in cases:
        spy = Spy()
        lab = await tool_lab(tmp_path, spy, entry(rewriting(**changes), name="meddler"))
        error = await lab.refusal("file.peek", path="src/a")
        assert error.code == code, changes
        assert spy.calls == []
        (changed,) = lab.audit.of("pipeline.call_changed")
        assert (changed["plugin"], changed["outcome"]) == ("meddler", "refused")
        assert changed["tool_name"] == "file.peek"
        ending = lab.audit.events[-1]
        assert ending[0] == ("tool.denied" if error.number == -32001 else "tool.completed")
        if ending[0] == "tool.denied":
            assert ending[1]["changed_by"] == "meddler"


@requirement("EX-AMB-22")
async def test_a_harmless_change_runs_as_changed_and_no_plugin_runs_twice(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watches(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            seen.append(payload.args["path"])
            return PluginResult()

    spy = Spy()
    lab = await tool_lab(
        tmp_path,
        spy,
        entry(rewriting(args={"path": "src/b"}), name="meddler", priority=1),
        entry(Watches, priority=2),
    )
    assert await lab.call("file.peek", path="src/a") == {"ok": True}
    # Validated again: the default is filled in for the changed call, too.
    assert spy.calls[0].args == {"path": "src/b", "limit": 9}
    assert spy.calls[0].paths[0].relative == "./src/b"
    assert seen == ["src/b"]
    (changed,) = lab.audit.of("pipeline.call_changed")
    assert (changed["changed"], changed["outcome"]) == (["args"], "decided")


class Refuses(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
        return PluginResult(continue_processing=False, violation=PluginViolation("no", "d", "c"))


@requirement("AT-DISP-21", "EX-HOOK-04")
async def test_a_policy_that_says_no_ends_the_call_on_record(tmp_path: Path) -> None:
    later: list[str] = []

    class Later(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            later.append("called")
            return PluginResult()

    spy = Spy()
    lab = await tool_lab(
        tmp_path, spy, entry(Refuses, name="guard", priority=1), entry(Later, priority=2)
    )
    error = await lab.refusal("file.peek", path="src/a")
    assert error.code == "pipeline_refused"
    assert "guard" in error.message
    assert "no" in error.message
    assert spy.calls == later == []
    (denied,) = lab.audit.of("tool.denied")
    assert (denied["denied_by"], denied["rule"]) == ("guard", "pipeline")
    assert lab.audit.of("tool.completed") == []


async def test_plugins_come_after_the_gates_of_the_host(tmp_path: Path) -> None:
    spy = Spy()
    lab = await tool_lab(tmp_path, spy, entry(Refuses, name="guard"))
    cases: list[JsonObject] = [{"path": "data/x"}, {"path": 7}, {}]
    for params in cases:
        assert (await lab.refusal_with("file.peek", params)).code != "pipeline_refused"


async def test_a_result_passes_the_plugins_before_anybody_sees_it(tmp_path: Path) -> None:
    class Masks(Plugin):
        async def tool_post_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(
                modified_payload=payload.model_copy(update={"result": {"x": "***"}})
            )

    class Withholds(Plugin):
        async def tool_post_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(
                continue_processing=False, violation=PluginViolation("secret", "d", "c")
            )

    spy = Spy({"x": "secret"})
    lab = await tool_lab(tmp_path, spy, entry(Masks, hooks=[POST]))
    assert await lab.call("file.peek", path="src/a") == {"x": "***"}
    assert lab.outcomes[0].result == {"x": "***"}
    lab = await tool_lab(tmp_path, spy, entry(Withholds, hooks=[POST], name="lid"))
    error = await lab.refusal("file.peek", path="src/a")
    assert error.code == "pipeline_refused"
    assert lab.outcomes[0].result is None
    assert lab.audit.names()[-1] == "tool.denied"


async def test_a_policy_that_fails_ends_the_call_without_telling_its_insides(
    tmp_path: Path,
) -> None:
    class Breaks(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            raise RuntimeError("/etc/kaged/secret-rules.yaml line 7")

    spy = Spy()
    lab = await tool_lab(tmp_path, spy, entry(Breaks, name="rules"))
    error = await lab.refusal("file.peek", path="src/a")
    assert error.code == "plugin_error"
    assert "secret-rules" not in str(error.as_json())
    assert spy.calls == []


@requirement("EX-AMB-20")
async def test_only_the_host_fills_the_slots(tmp_path: Path) -> None:
    seen: list[Extensions] = []

    class Looks(Plugin):
        async def tool_pre_invoke(
            self, payload: ToolPreInvokePayload, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            seen.append(extensions)
            return PluginResult()

    capabilities = ("read_subject", "read_agent", "read_headers", "read_delegation")
    spy = Spy()
    pipeline = (await Lab.of(entry(Looks, *capabilities))).pipeline
    tool = make_tool(
        "memory-md.keep",
        plugin="memory-md",
        handler=spy,
        properties={
            "extensions": {"type": "object"},
            "security": {"type": "object"},
            "subject": {"type": "string"},
        },
    )
    lab = ToolLab(tmp_path, [tool], None, CODER, pipeline=pipeline)
    forged: Any = {"security": {"subject": {"id": "root", "type": "system"}, "labels": ["x"]}}
    await lab.call("memory-md.keep", extensions=forged, subject="root", **forged)
    (extensions,) = seen
    assert extensions.security is not None
    assert extensions.security.subject is not None
    assert extensions.security.subject.id == "operator"
    assert extensions.security.labels == frozenset()
    assert extensions.agent is not None
    assert extensions.agent.agent_id == "primary/coder"
    assert extensions.agent.session_id == "ses_1"
    assert extensions.mcp is not None
    assert extensions.mcp.tool is not None
    assert (extensions.mcp.tool.name, extensions.mcp.tool.server_id) == (
        "memory-md.keep",
        "memory-md",
    )


async def test_a_faulty_policy_file_refuses_calls_and_names_itself(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    spy = Spy()
    pipeline = Pipeline(clock, ids)
    text = "plugins:\n  - {name: g, kind: nowhere.Nothing, hooks: [tool_pre_invoke]}\n"
    await pipeline.load(parse_document(text, "policies.yaml"))
    tool = make_tool("file.peek", handler=spy)
    lab = ToolLab(tmp_path, [tool], pipeline=pipeline)
    error = await lab.refusal("file.peek")
    assert error.code == "pipeline_not_ready"
    assert "policies.yaml" in error.message
    assert spy.calls == []
    assert lab.audit.names() == ["tool.called", "tool.denied"]
    found = await explain_call(lab.dispatcher, "file.peek", {}, lab.context, pipeline=pipeline)
    assert not found.allowed
    assert "policies.yaml" in found.gates[-1].detail


# -- explain ---------------------------------------------------------------------------------------


async def test_an_explanation_agrees_with_the_dispatcher_and_leaves_no_trace(
    tmp_path: Path,
) -> None:
    spy = Spy()
    lab = await tool_lab(tmp_path, spy, entry(Refuses, name="guard"))
    pipeline = lab.dispatcher._pipeline()
    calls: list[tuple[str, Any, str]] = [
        ("file.peek", {"path": "src/a"}, ""),
        ("file.peek", {"path": "data/a"}, "cage"),
        ("file.peek", {"path": "../a"}, "cage"),
        ("file.peek", {"path": 7}, "params"),
        ("file.other", {}, "enabled"),
        ("kaged.ask", {}, "scope"),
        ("no.such", {}, "resolve"),
    ]
    for name, params, closed in calls:
        found = await explain_call(lab.dispatcher, name, params, lab.context, pipeline=pipeline)
        refused = [gate for gate in found.gates if gate.passed is False]
        assert [gate.step for gate in refused] == ([closed] if closed else [])
        assert found.allowed is (not closed)
        if closed:
            error = await lab.refusal_with(name, params)
            assert found.error == error.as_json()
            assert refused[0].remedy
        else:
            assert found.gates[-1].detail == "depends on a process of its own"
    assert len(lab.audit.of("tool.called")) == len(calls) - 1
    assert spy.calls == []


async def remedy_of(lab: ToolLab, name: str, params: Any) -> str:
    found = await explain_call(lab.dispatcher, name, params, lab.context)
    return next(gate.remedy for gate in found.gates if gate.passed is False)


async def test_the_remedy_is_what_would_really_help(tmp_path: Path) -> None:
    lab = await tool_lab(tmp_path, Spy())
    assert await remedy_of(lab, "file.peek", {"path": "./data/a"}) == "grant ro on ./data/a"
    granted = await tool_lab(tmp_path, Spy(), policy=cage("ro ./src", "ro ./data/a", root=tmp_path))
    found = await explain_call(
        granted.dispatcher, "file.peek", {"path": "./data/a"}, granted.context
    )
    assert found.allowed
    assert "file.other: {enabled: true}" in await remedy_of(lab, "file.other", {})
    assert "root agent" in await remedy_of(lab, "kaged.ask", {})
