"""Rows of the plugin host that need several situations each, through the real parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from fakes.project_stage import ProjectStage, subagent
from kaged.base import Tasks
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.errors import PluginUnavailable
from kaged.plugins.hooks import CompactionEvent
from kaged.plugins.states import PluginState as S
from kaged.wire.errors import InternalError
from kaged.wire.framing import Unsendable
from requirements import requirement

OK = {"result": "ok"}
LIMIT = 4 * 1024 * 1024
TOOL = {"name": "say", "description": "d", "parameters_schema": {"type": "object"}}
SYSTEM: Any = {"id": "m0", "role": "system", "content": "be kind"}
OLD: Any = {"id": "m1", "role": "user", "content": "hello"}
CODER = "primary.subagents.coder"


def event(old: list[Any] | None = None) -> CompactionEvent:
    return CompactionEvent(
        being_compacted=[OLD] if old is None else old,
        remaining=[SYSTEM],
        strategy="delegate",
        trigger="threshold_crossed",
        always_keep=[SYSTEM],
    )


@pytest.fixture
async def stage(lab: PluginLab, tmp_path: Path) -> AsyncIterator[ProjectStage]:
    made = ProjectStage(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()


# -- wire --------------------------------------------------------------------------------------


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
    # Theirs: exactly the limit is read, one byte more ends the plugin.
    answer = await plugin.call_method("a.b", {"size": LIMIT}, context)
    assert isinstance(answer, str)
    assert len(answer) > LIMIT - 100
    with pytest.raises(PluginUnavailable):
        await plugin.call_method("a.b", {"size": LIMIT + 1}, context)
    violation = (await lab.seen("plugin.protocol_violation"))[-1][1]
    assert violation["violation_type"] == "protocol.oversize_message"


# -- audit -------------------------------------------------------------------------------------


@requirement("PH-AUD-31")
async def test_the_events_outside_the_table_each_have_their_moment(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path, initialize_timeout_s=0.5)
    await lab.open()
    stage = ProjectStage(lab, tmp_path)
    try:
        for name, behaviour in {
            "quiet": {"greet": "silent"},
            "newer": {"answer": {"api_version": 99}},
            "other": {"answer": {"name": "else"}},
            "older": {"answer": {"version": "0.9.0"}},
        }.items():
            assert (await stage.add(name, behaviour)).state is S.FAILED
        assert (await lab.until_event("plugin.initialize_timeout"))["name"] == "quiet"
        api = await lab.until_event("plugin.api_mismatch")
        assert (api["name"], api["host_api_version"], api["plugin_api_version"]) == ("newer", 1, 99)
        assert (await lab.until_event("plugin.name_mismatch"))["name"] == "other"
        assert (await lab.until_event("plugin.version_mismatch"))["name"] == "older"
        forgetful = {"role": "compactor", "messages": [OLD], "superseded": ["m1"]}
        await stage.running(
            "squeeze",
            {"on": {"kaged.hook.pre_compact": [{"result": forgetful}]}},
            hooks=["pre_compact"],
            roles=["compactor"],
        )
        declared = {"plugins": {"squeeze": {"package": "squeeze"}}}
        await stage.load({**declared, "compaction": {"delegate": {"plugin": "squeeze"}}})
        outcome = await stage.supervisor.hooks.pre_compact(
            stage.participants(), stage.context(), event()
        )
        assert outcome.fallback is not None
        dropped = await lab.until_event("compactor_dropped_always_keep")
        assert dropped == {"name": "squeeze", "missing": ["m0"]}
        await stage.supervisor.disable("squeeze")
        assert (await lab.until_event("plugin.stopped"))["name"] == "squeeze"
    finally:
        await stage.supervisor.stop_all()
        await lab.close()


@requirement("PH-AUD-36")
async def test_calls_have_a_pair_of_events_and_nothing_else_has(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path, request_timeout_s=0.5)
    await lab.open()
    stage = ProjectStage(lab, tmp_path)
    try:
        plugin = await stage.running(
            "stub",
            {
                "on": {
                    "a.b": [OK],
                    "c.d": [{"hang": True}],
                    "kaged.hook.on_session_start": [{"result": None}],
                }
            },
            tools=[TOOL],
            hooks=["on_session_start"],
            config_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
        )
        await stage.load({"plugins": {"stub": {"package": "stub", "config": {"n": 1}}}})
        await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
        lab.wake()
        assert plugin.conversation is not None
        assert await plugin.conversation.ping() is None
        assert {"ping", "config.update", "projects.activated"} <= set(stage.methods("stub"))
        pair = ("plugin.method_called", "plugin.method_returned")
        assert await lab.seen(*pair) == []
        await stage.tool("stub.say", text="x")
        await lab.call(plugin)
        with pytest.raises(InternalError):
            await lab.call(plugin, "c.d")
        seen = [(name, data["method"], data.get("success")) for name, data in await lab.seen(*pair)]
        assert seen == [
            (pair[0], "stub.say", None),
            (pair[1], "stub.say", True),
            (pair[0], "a.b", None),
            (pair[1], "a.b", True),
            (pair[0], "c.d", None),
            (pair[1], "c.d", False),
        ]
        # A call that dies with its process has its end on record, too.
        dying = await stage.running("dying", {"on": {"a.b": [{"exit": 3}]}})
        with pytest.raises(PluginUnavailable):
            await lab.call(dying)
        assert (await lab.seen(*pair))[-1][1]["success"] is False
    finally:
        await stage.supervisor.stop_all()
        await lab.close()


# -- life --------------------------------------------------------------------------------------


@requirement("PH-AMB-37")
async def test_each_way_to_an_end_has_its_own_states(stage: ProjectStage) -> None:
    lab, supervisor = stage.lab, stage.supervisor
    plugin = await stage.running("stub", {"on": {"a.b": [{"exit": 1}]}})
    await supervisor.disable("stub")
    assert list(plugin.history)[-3:] == [S.RUNNING, S.STOPPED, S.DISABLED]
    await supervisor.enable("stub")
    await supervisor.restart("stub", "test")
    assert list(plugin.history)[-5:] == [S.SPAWNING, S.RUNNING, S.STOPPED, S.SPAWNING, S.RUNNING]
    for failure in range(1, 6):
        with pytest.raises(PluginUnavailable):
            await supervisor.call("stub", "a.b", {}, lab.context())
        await lab.until_event("plugin.crashed", failure)
        await lab.until(plugin, S.CRASHED, S.FAILED)
        if failure < 5:
            lab.wake(2)  # the backoff, and the health check of the process that is gone
            await lab.until(plugin, S.RUNNING)
            assert list(plugin.history)[-3:] == [S.CRASHED, S.SPAWNING, S.RUNNING]
    await lab.until_event("plugin.failed")
    assert supervisor.status("stub")["state"] == "failed"
    assert (await lab.seen("plugin.disabled"))[-1][1]["reason"] == "failure"
    other = await stage.running("other")
    await supervisor.stop_all()
    assert list(other.history)[-2:] == [S.RUNNING, S.STOPPED]
    assert supervisor.status("stub")["state"] == "failed"


@requirement("PH-SUP-26")
async def test_a_stubborn_plugin_keeps_no_other_from_being_told(stage: ProjectStage) -> None:
    stubborn = await stage.running(
        "stubborn", {"shutdown": "ignore", "sigterm": "ignore"}, shutdown_timeout_sec=3
    )
    meek = await stage.running("meek")
    tasks = Tasks("test", lambda _name, error: pytest.fail(repr(error)))
    stopping = tasks.start(stage.supervisor.stop_all(), "stop")
    async with asyncio.timeout(20):
        await stage.lab.until_event("plugin.stopped")
        # The meek one has heard it and is gone while the stubborn one still has its time.
        assert stage.methods("meek")[-1] == "shutdown"
        assert not stopping.done()
        assert stubborn.state is S.RUNNING
        assert stage.methods("stubborn")[-1] == "shutdown"
        await stopping
    assert meek.state is S.STOPPED
    assert stubborn.state is S.STOPPED
    assert [data["name"] for _, data in await stage.lab.seen("plugin.killed")] == ["stubborn"]


# -- cage --------------------------------------------------------------------------------------


@requirement("PH-MANI-11")
async def test_a_relative_command_starts_wherever_the_host_stands(
    lab: PluginLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "main.py").write_text("raise SystemExit('the wrong one')", encoding="utf-8")
    for number, command in enumerate((["./main.py"], ["/usr/bin/env", "python3", "./main.py"])):
        installed = lab.install({"on": {"a.b": [{"env": True}]}}, command=command)
        (installed.directory / "main.py").chmod(0o755)
        monkeypatch.chdir(elsewhere if number else "/")
        plugin = lab.plugin(installed)
        await plugin.start()
        assert plugin.state is S.RUNNING, plugin.note
        assert (await lab.call(plugin))["cwd"] == str(installed.directory)
        await plugin.stop("next")


@requirement("PH-AMB-05")
async def test_config_and_project_paths_stand_for_directories(
    stage: ProjectStage, tmp_path: Path
) -> None:
    lab = stage.lab
    for wrong in ("read:fs:config:/../x", "read:fs:memory", "read:fs:project:/a/../../b"):
        with pytest.raises(ConfigFileInvalid):
            lab.install(name="wrong", capabilities=[wrong])
    notes = lab.root / "data" / "memory" / "memory" / "notes"
    theirs = lab.root / "data" / "other" / "memory" / "notes"
    docs = {name: tmp_path / name / "docs" for name in ("boats", "cars", "bare")}
    for name, folder in docs.items():
        folder.mkdir(parents=True) if name != "bare" else folder.parent.mkdir()
        if name != "bare":
            (folder / "page").write_text(name, encoding="utf-8")
    capabilities = ["write:fs:config:/memory", "read:fs:project:/docs"]
    on = {
        "a.b": [{"write": str(notes)}],
        "c.d": [{"write": str(theirs)}],
        "e.f": [{"read": str(docs["boats"] / "page")}],
        "g.h": [{"read": str(docs["cars"] / "page")}],
    }
    methods = list(on)
    await stage.running("other", {}, capabilities=["write:fs:config:/memory"])
    plugin = await stage.running(
        "memory",
        {"on": on, "answer": {"methods": methods}},
        capabilities=capabilities,
        methods=methods,
    )
    # Without a project: its own directory, made on demand, and nobody else's.
    assert await lab.call(plugin, "a.b") == {"ok": True}
    assert notes.read_text(encoding="utf-8") == "written\n"
    assert "failed" in await lab.call(plugin, "c.d")
    assert not theirs.exists()
    assert "failed" in await lab.call(plugin, "e.f")
    first = plugin.conversation
    declared = {"plugins": {"memory": {"package": "memory"}}}
    await stage.load(declared, "boats", docs["boats"].parent)
    assert plugin.conversation is not first  # another set of projects is another cage
    assert await lab.call(plugin, "e.f") == {"text": "boats"}
    assert "failed" in await lab.call(plugin, "g.h")
    # A project without that directory is left out and harms nobody.
    await stage.load(declared, "bare", docs["bare"].parent)
    assert plugin.state is S.RUNNING
    assert await lab.call(plugin, "e.f") == {"text": "boats"}
    await stage.supervisor.unload_project("boats")
    assert "failed" in await lab.call(plugin, "e.f")


# -- configuration -----------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"tag": {"type": "string", "default": "none"}},
    "additionalProperties": False,
}
SECRETS = {
    "type": "object",
    "properties": {"api_token": {"type": "string"}},
    "required": ["api_token"],
    "additionalProperties": False,
}


@requirement("PH-CONF-16", "PH-AMB-58", "PH-METH-18")
async def test_a_changed_override_counts_at_the_next_call(stage: ProjectStage) -> None:
    await stage.running("memory", tools=[TOOL], config_schema=SCHEMA, hooks=["pre_compact"])
    base = {"package": "memory", "isolation": "project", "config": {"tag": "base"}}

    async def load(tag: str) -> None:
        below = subagent(plugins={"memory": {"config": {"tag": tag}}})
        await stage.load({"plugins": {"memory": base}, "subagents": {"coder": below}})

    def in_force() -> list[str]:
        sent = [m for m in stage.received("memory") if m["method"] == "config.update"]
        return [m["params"]["config"]["tag"] for m in sent]

    await load("one")
    answer = await stage.tool("memory.say", CODER, text="x")
    assert answer["text"] == "x"
    assert answer["_context"]["agent_path"] == CODER
    assert answer["_context"]["session_id"] == "ses_1"
    assert in_force()[-1] == "one"
    pid = stage.supervisor.status("memory")["pid"]
    await load("two")
    await stage.supervisor.hooks.pre_compact(
        stage.participants(CODER), stage.context(CODER), event()
    )
    assert in_force()[-1] == "two"
    await stage.tool("memory.say", "primary")
    assert in_force()[-1] == "base"
    assert stage.supervisor.status("memory")["pid"] == pid
    # Structure is judged when the project is loaded.
    below = subagent(plugins={"memory": {"isolation": "agent"}})
    with pytest.raises(ConfigFileInvalid):
        await stage.load({"plugins": {"memory": base}, "subagents": {"coder": below}})


@requirement("PH-CONF-09", "PH-CONF-17")
async def test_a_system_field_has_no_place_in_a_project_file(stage: ProjectStage) -> None:
    stage.secrets["memory"] = {"address": "here"}
    system = {"type": "object", "properties": {"address": {"type": "string"}}}
    await stage.running("memory", tools=[TOOL], config_schema=SCHEMA, system_config_schema=system)
    leaking = {"package": "memory", "config": {"address": "elsewhere"}}
    (refused,) = (await stage.load({"plugins": {"memory": leaking}})).refused
    assert refused.data is not None
    assert refused.data["side"] == "project"
    assert "address belongs to the operator's local.toml" in str(refused.data["errors"])
    event_data = await stage.lab.until_event("plugin.config_validation_failed")
    assert (event_data["name"], event_data["side"]) == ("memory", "project")
    base = {"package": "memory", "isolation": "project"}
    below = subagent(plugins={"memory": {"config": {"address": "elsewhere"}}})
    admitted = await stage.load({"plugins": {"memory": base}, "subagents": {"coder": below}})
    assert [one.agent_path for one in admitted.refused] == [CODER]
    await stage.tool("memory.say")
    configs = [m["params"] for m in stage.received("memory") if m["method"] == "config.update"]
    assert all(one["config"]["address"] == "here" for one in configs)
    # There is no annotation for it: the place of the field is all that counts.
    odd = {"type": "object", "properties": {"x": {"type": "string", "system_only": True}}}
    await stage.running("odd", config_schema=odd)
    admitted = await stage.load({"plugins": {"odd": {"package": "odd", "config": {"x": "y"}}}})
    assert admitted.refused == ()


@requirement("PH-AMB-57")
async def test_a_bad_half_costs_the_plugin_or_the_declaration(stage: ProjectStage) -> None:
    stage.secrets["needy"] = {"api_token": 7}
    needy = await stage.add("needy", system_config_schema=SECRETS)
    assert needy.state is S.FAILED
    failed = await stage.lab.until_event("plugin.config_validation_failed")
    assert (failed["name"], failed["side"]) == ("needy", "system")
    plugin = await stage.running("memory", tools=[TOOL], config_schema=SCHEMA)
    good, bad = {"tag": "fine"}, {"tag": 7}
    below = subagent(plugins={"memory": {"package": "memory", "config": bad}})
    admitted = await stage.load(
        {
            "plugins": {"memory": {"package": "memory", "config": good}},
            "subagents": {"coder": below},
        }
    )
    assert [one.agent_path for one in admitted.accepted] == ["primary"]
    assert [one.agent_path for one in admitted.refused] == [CODER]
    assert plugin.state is S.RUNNING
    assert (await stage.tool("memory.say"))["_context"]["agent_path"] == "primary"
    failed = await stage.lab.until_event("plugin.config_validation_failed", 2)
    assert (failed["name"], failed["side"]) == ("memory", "project")


@requirement("PH-AMB-17")
async def test_a_project_goes_by_one_name_everywhere(stage: ProjectStage, tmp_path: Path) -> None:
    await stage.running("memory", tools=[TOOL])
    declared = {"plugins": {"memory": {"package": "memory"}}}
    # Two folders of one name have one slug, and are two projects all the same.
    first, second = tmp_path / "x" / "music", tmp_path / "y" / "music"
    await stage.load(declared, "prj_one", first)
    await stage.load(declared, "prj_two", second)
    told = [m for m in stage.received("memory") if m["method"] == "projects.activated"]
    assert [m["params"]["project"] for m in told] == ["prj_one", "prj_two"]
    for project in ("prj_one", "prj_two"):
        context = stage.context(project=project)
        answer: Any = await stage.supervisor.call_tool("memory.say", {}, context)
        assert answer["_context"]["project_id"] == project
    await stage.supervisor.restart("memory", "test")
    greeting = [m for m in stage.received("memory") if m["method"] == "initialize"][-1]
    assert greeting["params"]["projects"] == ["prj_one", "prj_two"]
    await stage.supervisor.unload_project("prj_one")
    gone = [m for m in stage.received("memory") if m["method"] == "projects.deactivated"]
    assert [m["params"] for m in gone] == [{"project": "prj_one"}]


# -- roles -------------------------------------------------------------------------------------


@requirement("PH-AMB-10")
async def test_a_compactor_needs_the_role_and_the_designation(stage: ProjectStage) -> None:
    answer = {"role": "compactor", "messages": [SYSTEM], "superseded": ["m1"]}
    on = {"on": {"kaged.hook.pre_compact": [{"result": answer}]}}
    common: dict[str, Any] = {"hooks": ["pre_compact"]}
    await stage.running("squeeze", on, roles=["compactor"], package="@scope/squeeze", **common)
    await stage.running("press", on, roles=["compactor"], **common)
    await stage.running("watch", on, **common)

    async def compact(agent: str = "primary") -> Any:
        return await stage.supervisor.hooks.pre_compact(
            stage.participants(agent), stage.context(agent), event()
        )

    mine = {"plugins": {"mine": {"package": "@scope/squeeze"}}}
    await stage.load(mine)  # the role alone: the configured strategy runs
    outcome = await compact()
    assert (outcome.replacement, outcome.fallback) == (None, None)
    for name in ("mine", "squeeze", "@scope/squeeze"):  # key, plugin name, package
        await stage.load({**mine, "compaction": {"delegate": {"plugin": name}}})
        assert (await compact()).replacement is not None, name
    watcher = {"plugins": {"watch": {"package": "watch"}}}
    admitted = await stage.load({**watcher, "compaction": {"delegate": {"plugin": "watch"}}})
    assert "is no compactor" in admitted.refused[0].reason
    with pytest.raises(ConfigFileInvalid):  # not declared on the agent
        await stage.load({**mine, "compaction": {"delegate": {"plugin": "press"}}})
    both = {"plugins": {"mine": {"package": "@scope/squeeze"}, "press": {"package": "press"}}}
    below = subagent(
        plugins={"press": {"package": "press"}}, compaction={"delegate": {"plugin": "press"}}
    )
    admitted = await stage.load({**both, "subagents": {"coder": below}})
    assert [(one.plugin, one.agent_path) for one in admitted.refused] == [("press", "primary")]
    violation = await stage.lab.until_event("plugin.role_violation")
    assert (violation["first"], violation["second"]) == ("squeeze", "press")
    assert stage.supervisor.get("press").state is S.RUNNING
    assert (await compact(CODER)).replacement is not None
