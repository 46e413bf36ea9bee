"""Further rows of the plugin host, in the lab: wire, states, names, knobs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fakes.plugin_lab import BASE_MANIFEST, PluginLab
from fakes.project_stage import ProjectStage
from kaged.base import Tasks
from kaged.config.localconfig import ModelTrait
from kaged.config.manifest import parse_manifest
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.errors import PluginTimedOut, PluginUnavailable, ToolNameInvalid
from kaged.plugins.install_errors import KnobRefused
from kaged.plugins.knob_write import KnobService
from kaged.plugins.states import PluginState as S
from kaged.wire.context import WireContext
from kaged.wire.errors import RpcError
from requirements import requirement

TOOL = {"name": "say", "description": "d", "parameters_schema": {"type": "object"}}
DECLARED = {"plugins": {"stub": {"package": "stub"}}}


@pytest.fixture
async def stage(lab: PluginLab, tmp_path: Path) -> AsyncIterator[ProjectStage]:
    made = ProjectStage(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()


def manifest(**more: Any) -> Any:
    return parse_manifest(yaml.safe_dump({**BASE_MANIFEST, **more})).value


# -- wire --------------------------------------------------------------------------------------


@requirement("PH-WIRE-14", "PH-AMB-15")
async def test_every_line_of_the_hosts_is_json_rpc(stage: ProjectStage) -> None:
    plugin = await stage.running(
        "stub",
        {
            "on": {
                "a.b": [{"ask": ["kaged.nothing", {}]}],
                "c.d": [{"raw": "[]"}, {"notify": ["x.y", {}, 150]}, {"result": 1}],
                "kaged.hook.on_session_start": [{"result": None}],
            }
        },
        tools=[TOOL],
        hooks=["on_session_start"],
        config_schema={"type": "object"},
    )
    await stage.load(DECLARED)
    for method in ("a.b", "c.d"):
        await stage.lab.call(plugin, method)
    await stage.tool("stub.say")
    await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    assert plugin.conversation is not None
    await plugin.conversation.ping()
    await stage.supervisor.unload_project("p")
    await stage.supervisor.disable("stub")
    seen = stage.received("stub")
    ids: list[int] = []
    for message in seen:
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            assert isinstance(message["method"], str)
            assert set(message) <= {"jsonrpc", "id", "method", "params"}
            if "id" in message:
                ids.append(message["id"])
            carries = message["method"] in {"a.b", "c.d", "stub.say"} or "hook" in message["method"]
            assert ("_context" in message["params"]) is carries, message
        else:
            assert set(message) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
            assert type(message["error"]["code"]) is int
            assert isinstance(message["error"]["message"], str)
    assert ids == list(range(1, len(ids) + 1))
    expected = {
        "initialize", "initialized", "config.update", "projects.activated", "a.b", "c.d",
        "stub.say", "kaged.hook.on_session_start", "ping", "projects.deactivated", "shutdown",
        "system.rate_limited",
    }  # fmt: skip
    assert {m["method"] for m in seen if "method" in m} == expected
    assert {m["error"]["code"] for m in seen if "error" in m} == {-32601, -32600}


@requirement("PH-HAND-19", "PH-TOOL-15")
async def test_nothing_but_the_handshake_is_sent_before_initialized(stage: ProjectStage) -> None:
    lab = stage.lab
    slow = lab.install(
        {"log": str(stage.logs / "stub"), "config": "late"},
        capabilities=[f"write:fs:{stage.logs}"],
        tools=[TOOL],
        hooks=["on_session_start"],
        config_schema={"type": "object"},
    )
    plugin = stage.supervisor.register(slow)
    await stage.load(DECLARED)
    tasks = Tasks("test", lambda _name, error: pytest.fail(repr(error)))
    starting = tasks.start(plugin.start(), "start")
    await lab.until_event("plugin.spawned")
    assert plugin.state is S.SPAWNING
    async with asyncio.timeout(0.4):  # at once, long before the slow handshake is over
        with pytest.raises(PluginUnavailable):
            await lab.call(plugin)
        with pytest.raises(PluginUnavailable):
            await stage.tool("stub.say")
        await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    await starting
    assert plugin.state is S.RUNNING
    assert plugin.conversation is not None
    assert await plugin.conversation.ping() is None  # so it has read all that came before
    assert stage.methods("stub")[:3] == ["initialize", "config.update", "initialized"]
    assert {"a.b", "stub.say", "kaged.hook.on_session_start"}.isdisjoint(stage.methods("stub"))
    await stage.supervisor.disable("stub")
    with pytest.raises(PluginUnavailable):
        await stage.tool("stub.say")


@requirement("PH-CTX-08")
async def test_a_half_filled_context_is_never_sent(stage: ProjectStage) -> None:
    plugin = await stage.running("stub", {"on": {"a.b": [{"echo": True}]}})
    for members in (
        {"project_id": "p"},
        {"agent_path": "primary"},
        {"session_id": "s"},
        {"project_id": "p", "agent_path": "primary"},
    ):
        with pytest.raises(Exception, match="together"):
            await plugin.call_method("a.b", {}, WireContext(request_id="r", **members))
    assert "a.b" not in stage.methods("stub")
    daemon: Any = await stage.lab.call(plugin)
    assert [daemon["_context"][name] for name in ("project_id", "agent_path", "session_id")] == [
        None,
        None,
        None,
    ]


@requirement("PH-AMB-41")
async def test_reserved_codes_pass_with_a_warning_and_others_in_silence(
    stage: ProjectStage,
) -> None:
    on = {f"e.n{code}": [{"error": [-code, "no"]}] for code in (32700, 32600, 32603, 32050, 32500)}
    plugin = await stage.running(
        "stub", {"on": on, "answer": {"methods": list(on)}}, methods=list(on)
    )
    for method in on:
        with pytest.raises(RpcError) as refused:
            await stage.lab.call(plugin, method)
        assert refused.value.number == -int(method.removeprefix("e.n"))
        warned = [entry["code"] for entry in stage.lab.logged("plugin.error_code_reserved")]
        assert warned == ([-32500] if method == "e.n32500" else [])


@requirement("PH-FAIL-12")
async def test_a_plugin_that_stops_reading_blocks_nobody(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path, request_timeout_s=1.0)
    await lab.open()
    stage = ProjectStage(lab, tmp_path)
    try:
        deaf = await stage.running("deaf", {"on": {"a.b": [{"hang": True}]}})
        good = await stage.running("good", {"on": {"a.b": [{"result": "here"}]}})
        tasks = Tasks("test", lambda _name, _error: None)
        pad = "x" * 3_000_000
        calls = [tasks.start(lab.call(deaf, pad=pad), "call") for _ in range(6)]
        for _ in range(20):
            async with asyncio.timeout(0.9):
                assert await lab.call(good) == "here"
        await asyncio.wait(calls)
        for call in calls:
            assert isinstance(call.exception(), PluginTimedOut | PluginUnavailable | RpcError)
    finally:
        await stage.supervisor.stop_all()
        await lab.close()


# -- states ------------------------------------------------------------------------------------


@requirement("PH-SUP-27")
async def test_the_status_has_one_word_for_each_situation(stage: ProjectStage) -> None:
    lab, supervisor = stage.lab, stage.supervisor
    installed = lab.install({"on": {"a.b": [{"exit": 1}]}})
    plugin = supervisor.register(installed)

    def word() -> Any:
        return supervisor.status("stub")["state"]

    assert (word(), supervisor.status("stub")["pid"]) == ("disabled", None)
    tasks = Tasks("test", lambda _name, error: pytest.fail(repr(error)))
    starting = tasks.start(plugin.start(), "start")
    await lab.until_event("plugin.spawned")
    assert word() == "spawning"
    await starting
    assert word() == "running"
    for failure in range(1, 6):
        with pytest.raises(PluginUnavailable):
            await lab.call(plugin)
        await lab.until(plugin, S.CRASHED, S.FAILED)
        if failure < 5:
            assert word() == "crashed"
            lab.wake(2)
            await lab.until(plugin, S.RUNNING)
    await lab.until(plugin, S.FAILED)
    assert word() == "failed"
    await supervisor.enable("stub")
    await supervisor.stop_all()
    assert word() == "stopped"
    known = {"disabled", "spawning", "running", "crashed", "failed", "stopped"}
    assert {state.value for state in S} == known


# -- names -------------------------------------------------------------------------------------

NAME = st.text("abz09-_.A ", min_size=1, max_size=5)


@given(plugin=NAME, tool=NAME)
@requirement("PH-TOOL-03")
def test_every_tool_that_can_be_declared_has_a_legal_full_name(plugin: str, tool: str) -> None:
    try:
        found = manifest(name=plugin, tools=[{**TOOL, "name": tool}])
    except ConfigFileInvalid:
        return
    full = f"{found.name}.{found.tools[0].name}"
    assert re.fullmatch(r"[a-z][a-z0-9-]+\.[a-z][a-z0-9_]*", full)


@requirement("PH-MANI-29", "PH-TOOL-04")
async def test_a_foreign_tool_name_is_refused_in_the_manifest_and_at_registration(
    stage: ProjectStage,
) -> None:
    for name in ("other.tool", "Say", "", "say-it", "stub.say"):
        with pytest.raises(ConfigFileInvalid):
            manifest(tools=[{**TOOL, "name": name}])
    installed = stage.lab.install(tools=[TOOL])
    for name in ("other.tool", "Say", ""):
        tool = replace(installed.manifest.tools[0], name=name)
        forged = replace(installed, manifest=replace(installed.manifest, tools=(tool,)))
        with pytest.raises(ToolNameInvalid):
            stage.supervisor.register(forged)
    assert list(stage.supervisor.plugins) == []
    assert list(stage.supervisor.tools) == []


@requirement("PH-AMB-12")
async def test_the_api_version_is_gated_twice(stage: ProjectStage) -> None:
    for version in (0, -1, 2, 99):
        with pytest.raises(ConfigFileInvalid):
            manifest(kaged_api=version)
    assert manifest(kaged_api=1).kaged_api == 1
    for number, version in enumerate((0, 2)):
        plugin = await stage.add(f"stub{number}", {"answer": {"api_version": version}})
        assert plugin.state is S.FAILED
        await stage.lab.until_event("plugin.api_mismatch", number + 1)


@requirement("PH-AMB-53")
async def test_odd_roles_are_refused_or_not_listened_to(stage: ProjectStage) -> None:
    with pytest.raises(ConfigFileInvalid):
        manifest(roles=[], hooks=["on_session_start"])
    said = [{"result": {"inject": "listen to me", "retain": ["this"]}}]
    await stage.running(
        "stub",
        {"on": {"kaged.hook.on_session_start": said, "kaged.hook.post_compact": said}},
        roles=["compactor"],
        hooks=["on_session_start", "pre_compact", "post_compact"],
    )
    await stage.load(DECLARED)
    seen = await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    assert (seen.inject, seen.retain) == ((), ())
    assert "kaged.hook.on_session_start" in stage.methods("stub")


# -- knobs -------------------------------------------------------------------------------------

FIELDS = {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}


def knob(kind: str, **more: Any) -> dict[str, Any]:
    return {"x": {"type": kind, "label": "X", "binds_to": "config.x", **more}}


async def turn(stage: ProjectStage, knobs: dict[str, Any], value: Any) -> None:
    """Write a knob of a freshly declared plugin."""
    service = KnobService(
        stage.supervisor,
        stage.lab.parts.audit,
        models=lambda: {"quick": frozenset({ModelTrait.FAST}), "deep": frozenset()},
    )
    if "stub" not in stage.supervisor.plugins:
        stage.supervisor.register(stage.lab.install(knobs=knobs, config_schema=FIELDS))
    await stage.load(DECLARED)

    async def reload(project: str) -> None:
        await stage.supervisor.load_project(project, stage.tree(DECLARED))

    await service.write("p", "primary", "stub", "x", value, request_id="r", reload=reload)


async def judge(
    stage: ProjectStage, knobs: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        await turn(stage, knobs, value)
    for value in bad:
        with pytest.raises(KnobRefused):
            await turn(stage, knobs, value)


def refused(*knobs: dict[str, Any]) -> None:
    for one in knobs:
        with pytest.raises(ConfigFileInvalid):
            manifest(knobs=one, config_schema=FIELDS)


@requirement("PH-KNOB-08")
async def test_a_text_knob_is_one_line_with_bounds(stage: ProjectStage) -> None:
    refused(
        knob("text"),
        knob("text", default=1),
        knob("text", default="", pattern="("),
        knob("text", default="", max_length="x"),
    )
    knobs = knob("text", default="ab", max_length=5, pattern="^[a-z]*$")
    await judge(stage, knobs, ["abcde", ""], ["abcdef", "ABC", "a\nb", 5, None])


@requirement("PH-KNOB-09")
async def test_a_multiline_knob_takes_line_breaks(stage: ProjectStage) -> None:
    refused(knob("multiline"), knob("multiline", default="", max_length="x"))
    knobs = knob("multiline", default="", max_length=5)
    await judge(stage, knobs, ["a\nb\nc", ""], ["abcdef", 5])


@requirement("PH-KNOB-10")
async def test_a_model_knob_takes_known_aliases(stage: ProjectStage) -> None:
    refused(knob("model_alias", default=None, filter="slow"), knob("model_alias", default=5))
    assert manifest(knobs=knob("model_alias", default=None), config_schema=FIELDS)
    for kind in ("any", "reasoning", "fast"):
        assert manifest(knobs=knob("model_alias", default="m", filter=kind), config_schema=FIELDS)
    knobs = knob("model_alias", default=None, filter="fast")
    await judge(stage, knobs, ["quick", None], ["deep", "unknown", 5])


@requirement("PH-KNOB-11")
async def test_a_path_knob_keeps_to_its_prefixes(stage: ProjectStage) -> None:
    refused(
        knob("path", default="config:/x"),
        knob("path", default="config:/x", prefixes=["home:"]),
        knob("path", default="config:/x", prefixes=["config:"], must_exist="maybe"),
    )
    knobs = knob("path", default="config:/x", prefixes=["config:"])
    bad = ["project:/x", "/etc/passwd", "x", "config:/../x", "config:x", 5]
    await judge(stage, knobs, ["config:/x", "config:/not/there"], bad)


@requirement("PH-KNOB-11")
async def test_a_path_knob_can_ask_for_what_exists(stage: ProjectStage) -> None:
    knobs = knob("path", default="config:/here", prefixes=["config:"], must_exist=True)
    (stage.lab.root / "data" / "stub" / "here").mkdir(parents=True)
    await judge(stage, knobs, ["config:/here"], ["config:/there"])
