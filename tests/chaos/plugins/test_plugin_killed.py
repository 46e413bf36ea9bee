"""kill -9 of a plugin at every step of its life: callers hear of it at once, nobody else does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from fakes.project_stage import ProjectStage
from kaged.base import KagedError, Tasks
from kaged.plugins.errors import StartFailed
from kaged.plugins.hooks import CompactionEvent
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.states import PluginState as S
from raising import has_code, raises_code

TOOL = {"name": "say", "description": "d", "parameters_schema": {"type": "object"}}
FIELDS: dict[str, Any] = {
    "tools": [TOOL],
    "hooks": ["on_session_start", "pre_compact"],
    "roles": ["observer", "compactor"],
    "config_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
HANG = [{"hang": True}]
OLD: Any = {"id": "m1", "role": "user", "content": "hello"}


class Scene:
    """A victim, a neighbour that must not notice, and somebody who waits for an answer."""

    def __init__(self, lab: PluginLab, stage: ProjectStage) -> None:
        self.lab, self.stage = lab, stage
        self.tasks = Tasks("test", lambda _name, _error: None)
        self.victim: HostedPlugin

    async def begin(self, behaviour: dict[str, Any]) -> asyncio.Task[None]:
        """Start the victim in the background."""
        await self.stage.running("good", {"on": {"a.b": [{"result": "here"}]}})
        log = {"log": str(self.stage.logs / "stub")}
        installed = self.lab.install(
            {**log, **behaviour}, capabilities=[f"write:fs:{self.stage.logs}"], **FIELDS
        )
        self.victim = self.stage.supervisor.register(installed)
        return self.tasks.start(self.victim.start(), "start")

    async def running(self, on: dict[str, Any]) -> None:
        await (await self.begin({"on": on}))
        assert self.victim.state is S.RUNNING, self.victim.note
        await self.stage.load(
            {
                "plugins": {"stub": {"package": "stub", "config": {"n": 1}}},
                "compaction": {"delegate": {"plugin": "stub"}},
            }
        )

    async def received(self, method: str) -> None:
        """Wait until the victim has read a message."""
        async with asyncio.timeout(10):
            log = self.stage.logs / "stub"
            while not log.exists() or method not in self.stage.methods("stub"):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        """End the whole cage without a word."""
        conversation = self.victim.conversation
        assert conversation is not None
        assert conversation.pid is not None
        os.kill(conversation.pid, signal.SIGKILL)

    async def others_live(self) -> None:
        async with asyncio.timeout(5):
            good = self.stage.supervisor.get("good")
            assert await self.lab.call(good) == "here"

    async def back(self) -> None:
        """Check that the victim comes back after its backoff and answers."""
        await self.lab.until(self.victim, S.CRASHED)
        self.lab.behave(self.victim, {"on": {"a.b": [{"result": "again"}]}})
        self.lab.wake(4)
        await self.lab.until(self.victim, S.RUNNING)
        assert await self.lab.call(self.victim) == "again"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    lab = PluginLab(tmp_path, config_patience_s=5.0)
    await lab.open()
    made = Scene(lab, ProjectStage(lab, tmp_path))
    yield made
    await made.stage.supervisor.stop_all()
    await lab.close()
    assert lab.processes() == []


@pytest.mark.parametrize(
    ("behaviour", "moment"),
    [({"greet": "silent"}, "initialize"), ({"config": "silent"}, "config.update")],
)
async def test_killed_in_the_handshake(
    scene: Scene, behaviour: dict[str, Any], moment: str
) -> None:
    starting = await scene.begin(behaviour)
    await scene.received(moment)
    scene.kill()
    async with asyncio.timeout(10):
        await starting
    assert scene.victim.state is S.FAILED  # a first start that fails is the operator's to repeat
    await scene.others_live()
    scene.lab.behave(scene.victim, {"on": {"a.b": [{"result": "again"}]}})
    await scene.stage.supervisor.enable("stub")
    assert await scene.lab.call(scene.victim) == "again"


async def test_killed_at_rest(scene: Scene) -> None:
    await scene.running({})
    scene.kill()
    await scene.others_live()
    await scene.back()


@pytest.mark.parametrize("moment", ["a.b", "stub.say", "kaged.hook.on_session_start", "ping"])
async def test_killed_while_somebody_waits(scene: Scene, moment: str) -> None:
    on = {"a.b": HANG, "stub.say": HANG, "kaged.hook.on_session_start": HANG}
    await scene.running(on)
    stage = scene.stage
    work = {
        "a.b": lambda: scene.lab.call(scene.victim),
        "stub.say": lambda: stage.tool("stub.say"),
        "kaged.hook.on_session_start": lambda: stage.supervisor.hooks.session_start(
            stage.participants(), stage.context()
        ),
        "ping": lambda: scene.lab.call(scene.victim),
    }[moment]
    waiting = scene.tasks.start(work(), "wait")
    await scene.received("a.b" if moment == "ping" else moment)
    if moment == "ping":
        scene.lab.wake()  # the health check finds the plugin busy, too
        await scene.others_live()
    scene.kill()
    async with asyncio.timeout(5):
        await asyncio.wait({waiting})
    if moment == "kaged.hook.on_session_start":
        assert waiting.result().inject == ()  # a session never stalls on a broken plugin
    else:
        assert has_code(waiting.exception(), "plugin_unavailable")
    await scene.others_live()
    await scene.back()


async def test_killed_while_it_compacts(scene: Scene) -> None:
    await scene.running({"kaged.hook.pre_compact": HANG})
    stage = scene.stage
    event = CompactionEvent([OLD], [], "delegate", "threshold_crossed")
    waiting = scene.tasks.start(
        stage.supervisor.hooks.pre_compact(stage.participants(), stage.context(), event), "wait"
    )
    await scene.received("kaged.hook.pre_compact")
    scene.kill()
    async with asyncio.timeout(5):
        outcome = await waiting
    assert outcome.replacement is None
    assert outcome.fallback is not None
    await scene.back()


async def test_killed_in_its_backoff_there_is_nothing_to_kill_and_stop_is_quick(
    scene: Scene,
) -> None:
    await scene.running({})
    scene.kill()
    await scene.lab.until(scene.victim, S.CRASHED)
    assert scene.victim.conversation is None
    with raises_code("plugin_unavailable"):
        await scene.lab.call(scene.victim)
    async with asyncio.timeout(10):
        await scene.stage.supervisor.disable("stub")
    assert scene.victim.state is S.DISABLED


async def test_killed_while_it_is_asked_to_stop(scene: Scene) -> None:
    await (await scene.begin({"shutdown": "ignore", "sigterm": "ignore"}))
    conversation = scene.victim.conversation
    assert conversation is not None
    stopping = scene.tasks.start(scene.stage.supervisor.disable("stub"), "stop")
    await scene.received("shutdown")
    assert conversation.pid is not None
    os.kill(conversation.pid, signal.SIGKILL)
    async with asyncio.timeout(4):  # less than its time to end by itself
        await stopping
    assert scene.victim.state is S.DISABLED
    assert await scene.lab.seen("plugin.crashed") == []
    await scene.others_live()


async def test_killed_in_a_reload_the_old_process_goes_on(scene: Scene) -> None:
    await scene.running({"a.b": [{"result": "old"}]})
    old = scene.victim.conversation
    scene.lab.behave(scene.victim, {"greet": "exit"})
    with pytest.raises(StartFailed):
        await scene.stage.supervisor.reload(scene.victim.installed)
    assert scene.victim.conversation is old
    assert await scene.lab.call(scene.victim) == "old"
    # And when the old one dies while the new one greets, the new one is not kept by halves.
    scene.lab.behave(scene.victim, {"log": str(scene.stage.logs / "new"), "config": "late"})
    reloading = scene.tasks.start(scene.stage.supervisor.reload(scene.victim.installed), "reload")
    async with asyncio.timeout(10):
        while not (scene.stage.logs / "new").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    scene.kill()
    await asyncio.wait({reloading})
    assert isinstance(reloading.exception(), KagedError)
    await scene.back()
