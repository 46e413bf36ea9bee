"""The handshake with real caged processes: every gate, and what each failure leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.plugins.states import PluginState
from requirements import requirement


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory that a stub may be granted to write its log into."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@requirement(
    "PH-HAND-01",
    "PH-HAND-03",
    "PH-HAND-04",
    "PH-HAND-05",
    "PH-HAND-07",
    "PH-HAND-18",
    "PH-WIRE-01",
    "PH-WIRE-18",
    "PH-WIRE-24",
)
async def test_a_life_is_initialize_initialized_calls_shutdown(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [{"result": 1}]}}, capabilities=[f"write:fs:{shared}"]
    )
    assert await lab.call(plugin) == 1
    await plugin.stop("test")
    messages = lines_of(log)
    assert [m["method"] for m in messages] == ["initialize", "initialized", "a.b", "shutdown"]
    first = messages[0]
    assert first["id"] == 1
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", first["params"]["daemon_version"])
    assert first["params"]["api_version"] == 1
    assert type(first["params"]["api_version"]) is int
    assert first["params"]["plugin_name"] == "stub"
    assert first["params"]["projects"] == []
    assert messages[1] == {"jsonrpc": "2.0", "method": "initialized", "params": {}}
    assert messages[2]["id"] > 1
    assert "id" not in messages[3]


@requirement("PH-HAND-22", "PH-AUD-01", "PH-AUD-02")
async def test_a_good_handshake_is_audited_with_its_fields(lab: PluginLab) -> None:
    plugin = await lab.running(capabilities=["net:[]"])
    (spawned, initialized) = await lab.seen("plugin.spawned", "plugin.initialized")
    conversation = plugin.conversation
    assert conversation is not None
    assert spawned[1]["pid"] == conversation.pid
    assert spawned[1]["name"] == "stub"
    assert spawned[1]["version"] == "1.0.0"
    assert spawned[1]["cage_id"]
    assert initialized[1] == {"name": "stub", "methods_count": 2, "capabilities_count": 1}


FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("name", {"answer": {"name": "other"}}, "plugin.name_mismatch", "initialize.name_mismatch"),
    (
        "version",
        {"answer": {"version": "9.9.9"}},
        "plugin.version_mismatch",
        "initialize.version_mismatch",
    ),
    ("api", {"answer": {"api_version": 99}}, "plugin.api_mismatch", "initialize.api_mismatch"),
    (
        "overreach",
        {"answer": {"capabilities_used": ["net:*"]}},
        "plugin.capability_overreach",
        "initialize.capability_overreach",
    ),
]


@pytest.mark.parametrize(
    ("behaviour", "event", "reason"),
    [
        pytest.param(*FAULTS[0][1:], marks=requirement("PH-HAND-08"), id="name"),
        pytest.param(*FAULTS[1][1:], marks=requirement("PH-HAND-09"), id="version"),
        pytest.param(*FAULTS[2][1:], marks=requirement("PH-HAND-10"), id="api"),
        pytest.param(*FAULTS[3][1:], marks=requirement("PH-HAND-14", "PH-AUD-19"), id="overreach"),
    ],
)
@requirement("PH-AMB-11", "PH-AMB-63", "PH-HAND-22", "PH-FAIL-05")
async def test_a_mismatch_kills_and_is_the_only_other_event(
    lab: PluginLab, behaviour: dict[str, Any], event: str, reason: str
) -> None:
    plugin = await lab.start(behaviour)
    assert plugin.state is PluginState.FAILED
    events = await lab.seen()
    assert [name for name, _ in events] == ["plugin.spawned", event]
    assert events[1][1]["reason"] == reason
    assert events[1][1]["name"] == "stub"
    assert lab.naps == []  # no restart is pending
    assert lab.processes() == []
    if event == "plugin.api_mismatch":
        assert (events[1][1]["host_api_version"], events[1][1]["plugin_api_version"]) == (1, 99)
        assert "1" in plugin.note
        assert "99" in plugin.note
    if event == "plugin.capability_overreach":
        assert events[1][1]["claimed"] == ["net:*"]
        assert events[1][1]["allowed"] == []


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","method":"x.y","params":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"kaged.storage.schema","params":{}}',
        '{"jsonrpc":"2.0","id":9,"result":{}}',
    ],
)
@requirement("PH-HAND-02", "PH-HAND-23")
async def test_a_message_ahead_of_the_answer_kills(lab: PluginLab, line: str) -> None:
    plugin = await lab.start({"before": [line]})
    assert plugin.state is PluginState.FAILED
    assert await lab.names() == ["plugin.spawned", "plugin.protocol_violation"]
    assert lab.processes() == []


@requirement("PH-HAND-23")
async def test_messages_between_the_answer_and_initialized_do_not_kill(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {
            "log": str(log),
            "config": "late",  # keeps the window between answer and initialized open
            "after_greeting": [
                '{"jsonrpc":"2.0","id":1,"method":"kaged.storage.schema","params":{}}',
                '{"jsonrpc":"2.0","method":"x.y","params":{}}',
            ],
            "on": {"a.b": [{"result": "fine"}]},
        },
        capabilities=[f"write:fs:{shared}"],
        config_schema={"type": "object"},
    )
    assert await lab.call(plugin) == "fine"
    answers = [m for m in lines_of(log) if "method" not in m]
    assert [(m["id"], m["error"]["code"]) for m in answers] == [(1, -32002)]
    assert lab.notifications == []
    assert len(lab.logged("plugin.notification_dropped")) == 1


@requirement("PH-HAND-17", "PH-AMB-63", "PH-AUD-12")
async def test_an_error_answer_fails_the_start(lab: PluginLab) -> None:
    plugin = await lab.start({"greet": "error"})
    assert plugin.state is PluginState.FAILED
    events = await lab.seen()
    assert [name for name, _ in events] == ["plugin.spawned", "plugin.failed"]
    assert events[1][1]["name"] == "stub"
    assert events[1][1]["total_failures"] == 0
    assert events[1][1]["step"] == "initialize"
    assert "not today" in events[1][1]["reason"]
    assert lab.processes() == []


@requirement("PH-AMB-34")
async def test_an_exit_in_the_first_handshake_fails_without_a_retry(lab: PluginLab) -> None:
    plugin = await lab.start({"greet": "exit"})
    assert plugin.state is PluginState.FAILED
    events = await lab.seen()
    assert [name for name, _ in events] == ["plugin.spawned", "plugin.failed"]
    assert "exited with 3" in events[1][1]["reason"]
    assert "no reason to live" in events[1][1]["reason"]
    assert lab.naps == []


@requirement("PH-HAND-11", "PH-HAND-12", "PH-METH-14", "PH-METH-21")
async def test_only_methods_of_both_lists_can_be_called(lab: PluginLab, shared: Path) -> None:
    from kaged.wire.errors import MethodNotFound

    log = shared / "log"
    plugin = await lab.running(
        {
            "log": str(log),
            "answer": {"methods": ["a.b", "extra.method"]},
            "on": {"a.b": [{"result": 1}]},
        },
        capabilities=[f"write:fs:{shared}"],
    )
    for method in ("extra.method", "c.d", "not.there"):
        with pytest.raises(MethodNotFound):
            await lab.call(plugin, method)
    await lab.call(plugin)
    assert [m["method"] for m in lines_of(log)] == ["initialize", "initialized", "a.b"]
    warnings = [entry["detail"] for entry in lab.logged("plugin.handshake_warned")]
    assert len(warnings) == 2
    assert "extra.method" in warnings[0]
    assert "c.d" in warnings[1]


@requirement("PH-AMB-60")
@pytest.mark.parametrize("field", ["name", "version", "api_version"])
async def test_a_greeting_without_a_required_field_fails_the_start(
    lab: PluginLab, field: str
) -> None:
    plugin = await lab.start({"answer": {field: None}})
    assert plugin.state is PluginState.FAILED
    events = await lab.seen()
    assert [name for name, _ in events] == ["plugin.spawned", "plugin.protocol_violation"]
    assert f"{field} is missing" in events[1][1]["detail"]


@requirement("PH-HAND-14", "PH-AMB-46")
async def test_claims_within_the_manifest_run(lab: PluginLab) -> None:
    await lab.running(
        {"answer": {"capabilities_used": ["kaged:storage:read", {"net": []}]}},
        capabilities=["kaged:storage:write", "net:[]"],
    )
    assert "plugin.initialized" in await lab.names()


async def test_a_narrower_path_than_the_manifests_is_overreach(
    lab: PluginLab, shared: Path
) -> None:
    (shared / "below").mkdir()
    plugin = await lab.start(
        {"answer": {"capabilities_used": [f"read:fs:{shared}/below"]}},
        capabilities=[f"read:fs:{shared}"],
    )
    assert plugin.state is PluginState.FAILED


@requirement("PH-HAND-13")
async def test_the_status_shows_the_notifications_it_may_send(lab: PluginLab) -> None:
    from kaged.plugins.status import plugin_status

    plugin = await lab.running()
    assert plugin_status(plugin, lab.parts.clock)["notifications"] == ["x.y"]


class TestSilence:
    @pytest.fixture
    async def lab(self, tmp_path: Path) -> Any:
        made = PluginLab(tmp_path, initialize_timeout_s=0.2)
        await made.open()
        yield made
        await made.close()

    @requirement("PH-HAND-15")
    async def test_no_answer_in_time_kills(self, lab: PluginLab) -> None:
        from kaged.plugins.parts import HostSettings

        assert HostSettings(daemon_version="1").initialize_timeout_s == 10.0
        plugin = await lab.start({"greet": "silent"})
        assert plugin.state is PluginState.FAILED
        assert await lab.names() == ["plugin.spawned", "plugin.initialize_timeout"]
        assert lab.processes() == []
