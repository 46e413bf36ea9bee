"""What the audit trail says of handshakes, compaction and calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.plugin_lab import PluginLab
from fakes.project_stage import OLD, TOOL, ProjectStage, event
from kaged.plugins.states import PluginState as S
from kaged.wire.errors import InternalError
from raising import raises_code
from requirements import requirement

OK = {"result": "ok"}


@requirement("PH-AUD-31")
async def test_the_events_outside_the_table_each_have_their_moment(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path, initialize_timeout_s=3.0)
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
    lab = PluginLab(tmp_path, request_timeout_s=2.0)
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
        with raises_code("plugin_unavailable"):
            await lab.call(dying)
        assert (await lab.seen(*pair))[-1][1]["success"] is False
    finally:
        await stage.supervisor.stop_all()
        await lab.close()
