"""The states of a plugin from its first start to its last end, and the word for each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.project_stage import ProjectStage
from kaged.base import Tasks
from kaged.plugins.states import PluginState as S
from raising import raises_code
from requirements import requirement


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
    while word() == "disabled":  # noqa: ASYNC110 - each step of the loop is to be seen
        await asyncio.sleep(0)
    assert word() == "spawning"
    await starting
    assert word() == "running"
    for failure in range(1, 6):
        with raises_code("plugin_unavailable"):
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
        with raises_code("plugin_unavailable"):
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
