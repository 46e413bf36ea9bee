"""What crosses the wire between the host and a plugin: form, order, size and silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from fakes.project_stage import TOOL, ProjectStage, event
from kaged.base import Tasks
from kaged.plugins.states import PluginState as S
from kaged.wire.context import WireContext
from kaged.wire.errors import RpcError
from kaged.wire.framing import Unsendable
from raising import has_code, raises_code
from requirements import requirement

LIMIT = 4 * 1024 * 1024
DECLARED = {"plugins": {"stub": {"package": "stub"}}}


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


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[ProjectStage]:
    """Yield a host that waits long enough for a slow handshake to do other things meanwhile."""
    lab = PluginLab(tmp_path, initialize_timeout_s=10.0, config_patience_s=4.0)
    await lab.open()
    made = ProjectStage(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()
    await lab.close()


@requirement("PH-HAND-19", "PH-TOOL-15")
async def test_nothing_but_the_handshake_is_sent_before_initialized(patient: ProjectStage) -> None:
    stage, lab = patient, patient.lab
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
    async with asyncio.timeout(3.5):  # at once, long before the slow handshake is over
        with raises_code("plugin_unavailable"):
            await lab.call(plugin)
        with raises_code("plugin_unavailable"):
            await stage.tool("stub.say")
        await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    await starting
    assert plugin.state is S.RUNNING
    assert plugin.conversation is not None
    assert await plugin.conversation.ping() is None  # so it has read all that came before
    assert stage.methods("stub")[:3] == ["initialize", "config.update", "initialized"]
    assert {"a.b", "stub.say", "kaged.hook.on_session_start"}.isdisjoint(stage.methods("stub"))
    await stage.supervisor.disable("stub")
    with raises_code("plugin_unavailable"):
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
    lab = PluginLab(tmp_path, request_timeout_s=5.0)
    await lab.open()
    stage = ProjectStage(lab, tmp_path)
    try:
        deaf = await stage.running("deaf", {"on": {"a.b": [{"hang": True}]}})
        good = await stage.running("good", {"on": {"a.b": [{"result": "here"}]}})
        tasks = Tasks("test", lambda _name, _error: None)
        pad = "x" * 3_000_000
        calls = [tasks.start(lab.call(deaf, pad=pad), "call") for _ in range(6)]
        for _ in range(20):
            async with asyncio.timeout(4.5):
                assert await lab.call(good) == "here"
        await asyncio.wait(calls)
        for call in calls:
            error = call.exception()
            assert isinstance(error, RpcError) or has_code(error, "plugin_unavailable")
    finally:
        await stage.supervisor.stop_all()
        await lab.close()


@requirement("PH-AMB-59")
async def test_an_answer_with_neither_member_is_null_but_no_greeting_and_no_health(
    stage: ProjectStage,
) -> None:
    empty = [{"raw": '{"jsonrpc":"2.0","id":$id}'}]
    plugin = await stage.running(
        "stub",
        {
            "ping": "empty",
            "on": {"a.b": empty, "kaged.hook.on_session_start": empty, "stub.say": empty},
        },
        hooks=["on_session_start"],
        tools=[TOOL],
        config_schema={"type": "object"},
    )
    await stage.load({"plugins": {"stub": {"package": "stub"}}})
    assert await stage.lab.call(plugin) is None
    assert await stage.tool("stub.say") is None
    seen = await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    assert seen.inject == ()
    returned = await stage.lab.until_event("plugin.hook.returned")
    assert returned["has_result"] is False
    assert await stage.lab.seen("plugin.hook.failed") == []
    stage.lab.wake()
    failed = await stage.lab.until_event("plugin.health_fail")
    assert failed["consecutive_failures"] == 1
    silent = await stage.add("mute", {"greet": 'raw:{"jsonrpc":"2.0","id":$id}'})
    assert silent.state is S.FAILED
    violation = await stage.lab.until_event("plugin.protocol_violation")
    assert violation["violation_type"] == "initialize.malformed"


@requirement("PH-AMB-33")
async def test_the_line_limit_at_its_edges_in_both_directions(stage: ProjectStage) -> None:
    script = (
        "import json, sys\n"
        "def say(i, r):\n"
        "    sys.stdout.write(json.dumps({'jsonrpc': '2.0', 'id': i, 'result': r}) + '\\n')\n"
        "    sys.stdout.flush()\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if 'method' not in m: continue\n"
        "    if m['method'] == 'initialize':\n"
        "        say(m['id'], {'name': 'edge', 'version': '1.0.0', 'api_version': 1,"
        " 'methods': ['a.b', 'c.d']})\n"
        "    elif m['method'] == 'a.b':\n"
        "        empty = len(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': ''}))\n"
        "        say(m['id'], 'x' * (m['params']['size'] - empty))\n"
        "    elif m['method'] == 'c.d':\n"
        "        print('[]', flush=True)\n"
        "        say(m['id'], len(line.encode()) - 1)\n"
        "    elif m['method'].startswith('kaged.hook.'):\n"
        "        p = m['params']\n"
        "        kept = p.get('transcript') or p['messages_being_compacted']\n"
        "        say(m['id'], {'retain': [kept[0]['id'], kept[-1]['id']]})\n"
        "    elif m['method'] == 'shutdown':\n"
        "        break\n"
        "    elif m['method'] == 'projects.activated':\n"
        "        say(m['id'], None)\n"
    )
    lab = stage.lab
    hooks = ["on_session_idle", "pre_compact", "post_compact"]
    installed = lab.install(
        name="edge", files={"main.py": script}, hooks=hooks, roles=["observer", "compactor"]
    )
    plugin = stage.supervisor.register(installed)
    await stage.supervisor.enable("edge")
    assert plugin.state is S.RUNNING, plugin.note
    # Ours: exactly the limit is written, one byte more fails here with -32602.
    context = stage.lab.context()
    fixed = await plugin.call_method("c.d", {"pad": ""}, context)
    assert isinstance(fixed, int)
    assert await plugin.call_method("c.d", {"pad": "y" * (LIMIT - fixed)}, context) == LIMIT
    with pytest.raises(Unsendable):
        await plugin.call_method("c.d", {"pad": "y" * (LIMIT - fixed + 1)}, context)
    returned = (await lab.seen("plugin.method_returned"))[-1][1]
    assert (returned["success"], returned["error_code"]) == (False, -32602)
    # A batch is refused and audited, and the plugin runs on: c.d wrote one before each answer.
    violations = await lab.seen("plugin.protocol_violation")
    assert {data["violation_type"] for _, data in violations} == {"batch"}
    assert plugin.state is S.RUNNING
    # Observers get the newest that fits; the compactor gets all of it or fails.
    declared = {"plugins": {"edge": {"package": "edge"}}}
    await stage.load(declared)
    big = [{"id": f"m{n}", "role": "user", "content": "z" * 1024 * 1024} for n in range(8)]
    seen = await stage.supervisor.hooks.post_compact(
        stage.participants(), stage.context(), event(big)
    )
    assert seen.retain[-1:] == ("m7",), str(await lab.seen())[-1500:]
    assert seen.retain[0] != "m0"
    assert await lab.seen("plugin.hook.failed") == []
    await stage.load({**declared, "compaction": {"delegate": {"plugin": "edge"}}})
    outcome = await stage.supervisor.hooks.pre_compact(
        stage.participants(), stage.context(), event(big)
    )
    assert outcome.replacement is None
    assert outcome.fallback is not None
    failed = await lab.until_event("plugin.hook.failed")
    assert failed["error_code"] == -32602
    # What no shortening makes fit is not sent at all, to an observer neither.
    endless = replace(event([]), strategy="z" * LIMIT)
    assert (
        await stage.supervisor.hooks.post_compact(stage.participants(), stage.context(), endless)
    ).retain == ()
    failed = await lab.until_event("plugin.hook.failed", 2)
    assert (failed["hook"], failed["error_code"]) == ("post_compact", -32602)
    # Theirs: exactly the limit is read, one byte more ends the plugin.
    answer = await plugin.call_method("a.b", {"size": LIMIT}, context)
    assert isinstance(answer, str)
    assert len(answer) > LIMIT - 100
    with raises_code("plugin_unavailable"):
        await plugin.call_method("a.b", {"size": LIMIT + 1}, context)
    violation = (await lab.seen("plugin.protocol_violation"))[-1][1]
    assert violation["violation_type"] == "protocol.oversize_message"
