"""States, health, restart and shutdown of real caged processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.states import PluginState
from raising import raises_code
from requirements import requirement

OK = {"result": "ok"}
S = PluginState


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def command_pid(plugin: HostedPlugin) -> int:
    assert plugin.conversation is not None
    pid = plugin.conversation.peer.process.command_pid
    assert pid is not None
    return pid


@requirement("PH-SUP-21", "PH-SUP-31", "PH-SUP-32", "PH-WIRE-20", "PH-AUD-09", "PH-SUP-19")
async def test_a_crash_is_reported_and_restarted_after_backoff(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    noisy = "".join(f"line {n}\n" for n in range(80))
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [{"stderr": noisy}, {"exit": 7}], "c.d": [OK]}},
        capabilities=[f"write:fs:{shared}"],
    )
    with raises_code("plugin_unavailable"):
        await lab.call(plugin)
    await lab.until(plugin, S.CRASHED)
    crash = await lab.until_event("plugin.crashed")
    assert (crash["name"], crash["exit_code"], crash["signal"]) == ("stub", 7, None)
    assert crash["last_stderr"] == [f"line {n}" for n in range(30, 80)]
    await lab.napping(2)  # the health interval and the backoff
    assert lab.naps[-1] == 1.0
    lab.wake(2)
    await lab.until(plugin, S.RUNNING)
    assert await lab.call(plugin, "c.d") == "ok"
    text = log.read_text(encoding="utf-8")
    assert text.count('"id":1,"method":"initialize"') == 2
    assert list(plugin.history) == [
        S.DISABLED,
        S.SPAWNING,
        S.RUNNING,
        S.CRASHED,
        S.SPAWNING,
        S.RUNNING,
    ]


@requirement("PH-SUP-22", "PH-SUP-33", "PH-SUP-34", "PH-SUP-23", "PH-AUD-14")
async def test_five_failures_end_the_tries_until_the_operator_acts(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"c.d": [OK]}})
    for failure in range(5):
        os.kill(command_pid(plugin), signal.SIGKILL)
        await lab.until(plugin, S.CRASHED, S.FAILED)
        if failure < 4:
            await lab.napping(2 * failure + 2)
            assert lab.naps[-1] == 2.0**failure
            lab.wake(2)
            await lab.until(plugin, S.RUNNING)
    await lab.until(plugin, S.FAILED)
    failed = await lab.until_event("plugin.failed")
    assert (failed["name"], failed["total_failures"]) == ("stub", 5)
    disabled = await lab.until_event("plugin.disabled")
    assert (disabled["name"], disabled["reason"]) == ("stub", "failure")
    assert list(plugin.history)[-2:] == [S.CRASHED, S.FAILED]
    assert lab.processes() == []
    await plugin.start()  # what `plugin enable` does
    assert plugin.state is S.RUNNING
    assert plugin.failures == 0


@requirement("PH-AMB-36", "PH-AUD-10", "PH-SUP-19")
async def test_an_unasked_exit_with_zero_is_exited_and_restarted(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"a.b": [{"stderr": "bye\n"}, {"exit": 0}]}})
    with raises_code("plugin_unavailable"):
        await lab.call(plugin)
    await lab.until(plugin, S.CRASHED)
    exited = await lab.until_event("plugin.exited")
    assert (exited["name"], exited["exit_code"]) == ("stub", 0)
    assert exited["last_stderr"] == ["bye"]
    await lab.napping(2)
    assert lab.naps[-1] == 1.0


@requirement("PH-AMB-34", "PH-SUP-37")
async def test_a_respawn_that_dies_early_continues_the_backoff(lab: PluginLab) -> None:
    plugin = await lab.running()
    lab.behave(plugin, {"greet": "exit"})
    os.kill(command_pid(plugin), signal.SIGKILL)
    await lab.until(plugin, S.CRASHED)
    await lab.napping(2)
    lab.wake(2)
    await lab.napping(3)
    assert lab.naps[-1] == 2.0
    assert plugin.state is S.CRASHED
    lab.behave(plugin, {"answer": {"name": "other"}})
    lab.wake()
    await lab.until(plugin, S.FAILED)  # a mismatch is never retried
    assert lab.naps[-1] == 2.0


@requirement("PH-SUP-20", "PH-SUP-35", "PH-AMB-38", "PH-SUP-25")
async def test_an_obedient_plugin_stops_cleanly(lab: PluginLab) -> None:
    plugin = await lab.running()
    await plugin.stop("test")
    assert plugin.state is S.STOPPED
    names = await lab.names()
    assert names[-2:] == ["plugin.exited", "plugin.stopped"]
    assert lab.naps == [30.0]  # only the health interval; no restart
    assert lab.processes() == []


@requirement("PH-SUP-42", "PH-SUP-24", "PH-MANI-23")
async def test_sigterm_reaches_the_plugin_itself(lab: PluginLab, shared: Path) -> None:
    proof = shared / "proof"
    plugin = await lab.running(
        {"shutdown": "ignore", "sigterm": f"file:{proof}"},
        capabilities=[f"write:fs:{shared}"],
        shutdown_timeout_sec=0,
    )
    await plugin.stop("test")
    assert proof.read_text(encoding="utf-8") == "got it"
    stopped = await lab.until_event("plugin.stopped")
    assert stopped["name"] == "stub"
    assert lab.processes() == []


@requirement("PH-SUP-14", "PH-SUP-15", "PH-METH-04")
async def test_a_healthy_plugin_is_pinged_at_its_interval(lab: PluginLab, shared: Path) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {"log": str(log)}, capabilities=[f"write:fs:{shared}"], health_interval_sec=7
    )
    for turn in range(1, 4):
        await lab.napping(turn)
        lab.wake()
    await lab.napping(4)
    assert lab.naps == [7.0] * 4
    assert log.read_text(encoding="utf-8").count('"method":"ping"') == 3
    assert plugin.state is S.RUNNING
    assert "plugin.health_fail" not in await lab.names()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("error", marks=requirement("PH-SUP-16")),
        pytest.param("empty"),
        pytest.param("silent", marks=requirement("PH-SUP-17")),
    ],
)
@requirement("PH-SUP-18", "PH-FAIL-03", "PH-AUD-08")
async def test_three_failed_checks_kill_and_restart(tmp_path: Path, how: str) -> None:
    from kaged.plugins.parts import HostSettings

    assert HostSettings(daemon_version="1").ping_timeout_s == 5.0
    lab = PluginLab(tmp_path, ping_timeout_s=0.1)
    await lab.open()
    try:
        plugin = await lab.running({"ping": how})
        for turn in range(1, 4):
            await lab.napping(turn)
            lab.wake()
            event = await lab.until_event("plugin.health_fail", turn)
            assert event["consecutive_failures"] == turn
            assert event["name"] == "stub"
        await lab.until(plugin, S.CRASHED)
        crash = await lab.until_event("plugin.crashed")
        assert crash["reason"] == "health"
        lab.behave(plugin, {})
        await lab.napping(4)
        lab.wake()
        await lab.until(plugin, S.RUNNING)
    finally:
        await lab.close()


@requirement("PH-SUP-15")
async def test_one_success_resets_the_count_of_failures(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path)
    await lab.open()
    script = (
        "import json, sys\n"
        "pings = 0\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    def say(r):\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': r}), flush=True)\n"
        "    if m['method'] == 'initialize':\n"
        "        say({'name': 'stub', 'version': '1.0.0', 'api_version': 1, 'methods': ['a.b']})\n"
        "    elif m['method'] == 'ping':\n"
        "        pings += 1\n"
        "        say({'status': 'ok' if pings == 3 else 'ill'})\n"
        "    elif m['method'] == 'shutdown':\n"
        "        break\n"
    )
    try:
        plugin = await lab.running(files={"main.py": script}, methods=["a.b"])
        for turn in range(1, 6):
            await lab.napping(turn)
            lab.wake()
        await lab.napping(6)
        counts = [d["consecutive_failures"] for _, d in await lab.seen("plugin.health_fail")]
        assert counts == [1, 2, 1, 2]
        assert plugin.state is S.RUNNING
    finally:
        await lab.close()


@requirement("PH-FAIL-08", "PH-ISO-12")
async def test_crashes_of_several_plugins_stay_apart(lab: PluginLab) -> None:
    names = ("one", "two", "three", "four")
    plugins = [
        await lab.running(
            {"answer": {"name": name}, "on": {"a.b": [{"exit": 1}], "c.d": [OK]}}, name=name
        )
        for name in names
    ]
    for plugin in plugins[:3]:
        with raises_code("plugin_unavailable"):
            await lab.call(plugin)
        await lab.until(plugin, S.CRASHED)
    assert await lab.call(plugins[3], "c.d") == "ok"
    await lab.napping(7)
    lab.wake(7)
    for plugin in plugins:
        await lab.until(plugin, S.RUNNING)
        assert await lab.call(plugin, "c.d") == "ok"


async def test_the_cage_of_a_plugin_is_on_record_too(lab: PluginLab) -> None:
    plugin = await lab.running()
    await plugin.stop("test")
    refused = await lab.start({}, name="refused", capabilities=["read:fs:/"])
    assert refused.state is S.FAILED
    await lab.parts.audit.flush()
    assert [name for name, _ in lab.cage_events] == ["cage.started", "cage.exited", "cage.refused"]
    started = lab.cage_events[0][1]
    assert (started["what"], started["caged"], started["seccomp"]) == (
        "plugin:stub",
        True,
        "default",
    )


async def test_stopping_in_the_middle_of_the_handshake_leaves_nothing(lab: PluginLab) -> None:
    import asyncio

    plugin = lab.plugin(lab.install({"greet": "silent"}))
    starting = asyncio.get_running_loop().create_task(plugin.start())
    await lab.until_event("plugin.spawned")
    await plugin.stop("test")
    await starting
    assert plugin.state is S.STOPPED
    assert lab.processes() == []


@requirement("PH-SUP-11", "PH-SUP-12", "PH-SUP-13", "PH-AMB-39")
async def test_the_environment_is_the_hosts_list_and_nothing_else(
    lab: PluginLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "hunter2")
    plugin = await lab.running(
        {"on": {"a.b": [{"env": True}]}},
        env={"LOG_LEVEL": "info", "LANG": "de_DE.UTF-8", "KAGED_PLUGIN_NAME": "mallory"},
        capabilities=["net:[]"],
    )
    seen: dict[str, Any] = await lab.call(plugin)
    env = seen["env"]
    assert env["KAGED_PLUGIN_NAME"] == "stub"
    assert env["KAGED_PLUGIN_DIR"] == str(plugin.installed.directory)
    assert env["KAGED_API_VERSION"] == "1"
    assert env["KAGED_LOG_LEVEL"] == "info"
    assert env["HOME"] == str(plugin.installed.directory)
    assert env["PATH"] == "/usr/bin:/usr/local/bin"
    assert env["LANG"] == "de_DE.UTF-8"
    assert env["LOG_LEVEL"] == "info"
    allowed = {
        "KAGED_PLUGIN_NAME",
        "KAGED_PLUGIN_DIR",
        "KAGED_API_VERSION",
        "KAGED_LOG_LEVEL",
        "HOME",
        "PATH",
        "LANG",
        "LOG_LEVEL",
        "PWD",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "LC_CTYPE",  # set by Python itself inside
        "PYTHONPATH",  # where a plugin in Python finds the SDK
    }
    assert set(env) <= allowed
    assert "hunter2" not in str(env)
    assert seen["cwd"] == str(plugin.installed.directory)


@requirement("PH-AMB-62")
async def test_config_paths_are_a_directory_of_the_plugins_own_that_lasts(lab: PluginLab) -> None:
    data = lab.root / "data" / "stub" / "memory" / "notes"
    plugin = await lab.running(
        {"on": {"a.b": [{"write": str(data)}], "c.d": [{"env": True}]}},
        capabilities=["write:fs:config:/memory"],
    )
    assert await lab.call(plugin) == {"ok": True}
    assert (await lab.call(plugin, "c.d"))["env"]["KAGED_CONFIG_ROOT"] == str(data.parents[1])
    await plugin.stop("test")
    await plugin.start()
    await lab.call(plugin)
    assert data.read_text(encoding="utf-8") == "written\nwritten\n"


@requirement("PH-AMB-68", "PH-CAGE-13")
async def test_operator_grants_widen_the_cage_but_not_the_claims(
    lab: PluginLab, shared: Path
) -> None:
    (shared / "file").write_text("content", encoding="utf-8")
    behaviour = {"on": {"a.b": [{"read": str(shared / "file")}]}}
    without = await lab.running(behaviour)
    assert "failed" in await lab.call(without)
    await without.stop("test")
    granted = await lab.running(behaviour, grants=[f"read:fs:{shared}"])
    assert await lab.call(granted) == {"text": "content"}
    spawned = await lab.seen("plugin.spawned")
    assert spawned[-1][1]["operator_grants"] == [f"read:fs:{shared}"]
    await granted.stop("test")
    claiming = await lab.start(
        {"answer": {"capabilities_used": [f"read:fs:{shared}"]}}, grants=[f"read:fs:{shared}"]
    )
    assert claiming.state is S.FAILED


@requirement("PH-CAGE-16")
@pytest.mark.parametrize("capability", ["read:fs:/", "read:fs:/no/such/place", "read:fs:/proc"])
async def test_a_cage_that_cannot_be_built_starts_nothing(lab: PluginLab, capability: str) -> None:
    plugin = await lab.start({}, capabilities=[capability])
    assert plugin.state is S.FAILED
    events = await lab.seen()
    assert [name for name, _ in events] == ["plugin.failed"]
    assert capability.removeprefix("read:fs:") in events[0][1]["reason"]
    assert lab.processes() == []


async def test_a_missing_runtime_is_named(lab: PluginLab) -> None:
    plugin = await lab.start({}, command=["/usr/bin/env", "no-such-runtime", "./main.py"])
    assert plugin.state is S.FAILED
    assert "no-such-runtime" in plugin.note
