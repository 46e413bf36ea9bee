"""Policies in a cage that hang, block, print, or cannot be loaded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaged.base import Ids, SystemClock
from kaged.cage import CageProcess, Spawner
from kaged.pipeline import (
    ControlExecutionStatus,
    GlobalContext,
    Pipeline,
    PluginConfig,
    PluginResult,
    ToolPreInvokePayload,
)
from kaged.pipeline.caged import CagedKind
from unit.pipeline.material import full_extensions

HOOK = "tool_pre_invoke"
CLASS = "fakes.pipeline_plugins.Everything"
CALL = ToolPreInvokePayload(name="db.query", args={"q": "select 1"})


class Place:
    """A pipeline with one plugin in a cage."""

    def __init__(self, pipeline: Pipeline, spawner: Spawner) -> None:
        self.pipeline = pipeline
        self._spawner = spawner

    @classmethod
    async def make(cls, spawner: Spawner, act: str, **settings: Any) -> Place:
        clock = SystemClock()
        pipeline = Pipeline(clock, Ids(clock), kinds={"caged": CagedKind(spawner)})
        entry = {
            "name": "p",
            "kind": "caged",
            "hooks": [HOOK],
            "config": {"act": act, "class_name": CLASS},
            **settings,
        }
        report = await pipeline.load_configs([PluginConfig.model_validate(entry)])
        assert report.in_force, report.problems
        return cls(pipeline, spawner)

    async def call(self) -> PluginResult[Any]:
        result, _ = await self.pipeline.invoke_hook(
            HOOK, CALL, GlobalContext("r"), extensions=full_extensions()
        )
        return result

    @property
    def worker(self) -> CageProcess:
        """The one process that runs."""
        (process,) = self._spawner.running
        return process

    @property
    def worker_pid(self) -> int:
        return self.worker.pid


async def test_a_hanging_hook_is_timed_out_and_its_worker_lives_on(spawner: Spawner) -> None:
    place = await Place.make(spawner, "hang", on_error="ignore", timeout_s=0.2)
    first = place.worker_pid
    result = await place.call()
    assert result.executions[0].status is ControlExecutionStatus.TIMEOUT
    assert (await place.call()).executions[0].status is ControlExecutionStatus.TIMEOUT
    assert place.worker_pid == first
    await place.pipeline.close()


async def test_a_blocked_worker_is_ended_and_replaced(spawner: Spawner) -> None:
    place = await Place.make(spawner, "block", on_error="ignore", timeout_s=0.2)
    worker = place.worker
    assert (await place.call()).executions[0].status is ControlExecutionStatus.TIMEOUT
    async with asyncio.timeout(20):
        await worker.wait()
    assert worker not in spawner.running
    async with asyncio.timeout(20):
        while not spawner.running:
            await place.call()  # gives up on a worker that takes longer to start; the next has it
            await asyncio.sleep(0.01)
    assert place.worker_pid != worker.pid
    await place.pipeline.close()


@pytest.mark.parametrize("act", ["print", "nonsense"])
async def test_a_plugin_that_prints_or_writes_nonsense_breaks_nothing(
    spawner: Spawner, act: str
) -> None:
    place = await Place.make(spawner, act, on_error="ignore")
    for _ in range(2):
        assert (await place.call()).continue_processing is True
    await place.pipeline.close()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "class_name"),
        ({"class_name": "NoDots"}, "class_name"),
        ({"class_name": "no_such_package_here.Class"}, "not installed"),
        ({"class_name": "sys.Class"}, "not a plugin package"),
        ({"class_name": "fakes.pipeline_plugins.NotAPlugin"}, "not a Plugin class"),
        ({"class_name": "fakes.pipeline_plugins.RefusesToStart"}, "will not"),
        ({"class_name": CLASS, "cage": {"read": 5}}, "config.cage"),
        ({"class_name": CLASS, "cage": {"net": ["nonsense"]}}, "config.cage"),
        ({"class_name": CLASS, "cage": {"reed": []}}, "config.cage"),
    ],
)
async def test_a_caged_plugin_that_cannot_be_loaded_says_why(
    spawner: Spawner, options: dict[str, Any], word: str
) -> None:
    clock = SystemClock()
    pipeline = Pipeline(clock, Ids(clock), kinds={"caged": CagedKind(spawner)})
    report = await pipeline.load_configs(
        [PluginConfig(name="p", kind="caged", hooks=[HOOK], config=options)]
    )
    assert not report.in_force
    assert word in report.problems[0].message
    assert not spawner.running or all(p.pid for p in spawner.running)


async def test_a_hook_without_a_method_is_refused_when_the_worker_loads(spawner: Spawner) -> None:
    clock = SystemClock()
    pipeline = Pipeline(clock, Ids(clock), kinds={"caged": CagedKind(spawner)})
    report = await pipeline.load_configs(
        [PluginConfig(name="p", kind="caged", hooks=["nope"], config={"class_name": CLASS})]
    )
    assert not report.in_force
    assert "nope" in report.problems[0].message
