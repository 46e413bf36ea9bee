"""One class in our process and in a cage: the same results, and nothing hidden inside the cage."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from fakes.mcp_sdk import server_table
from kaged.app.pipeline import plugin_kinds
from kaged.base import Ids, SystemClock
from kaged.cage import Spawner
from kaged.pipeline import (
    AgentExtension,
    ControlExecutionStatus,
    Extensions,
    GlobalContext,
    HttpExtension,
    Pipeline,
    PluginConfig,
    PluginError,
    PluginResult,
    PluginViolationError,
    RequestExtension,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
    ToolPreInvokePayload,
    UserContext,
)
from kaged.pipeline.caged import CagedKind, CagedPlugin
from requirements import requirement
from unit.pipeline.material import ALL_CAPABILITIES, full_extensions

HOOK = "tool_pre_invoke"
CLASS = "fakes.pipeline_plugins.Everything"
CALL = ToolPreInvokePayload(name="db.query", args={"q": "select 1"})


class Place:
    """A pipeline with one plugin, here or in a cage."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    @classmethod
    async def make(
        cls,
        spawner: Spawner | None,
        act: str,
        *capabilities: str,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Place:
        clock = SystemClock()
        kinds: Any = {} if spawner is None else {"caged": CagedKind(spawner)}
        pipeline = Pipeline(clock, Ids(clock), kinds=kinds)
        config = {"act": act, **(options or {})}
        if spawner is not None:
            config["class_name"] = CLASS
        report = await pipeline.load_configs(
            [
                PluginConfig.model_validate(
                    {
                        "name": "p",
                        "kind": CLASS if spawner is None else "caged",
                        "hooks": [HOOK],
                        "config": config,
                        "capabilities": list(capabilities),
                        **settings,
                    }
                )
            ]
        )
        assert report.in_force, report.problems
        return cls(pipeline)

    async def call(
        self, extensions: Extensions | None = None, context: GlobalContext | None = None
    ) -> PluginResult[Any]:
        result, self.contexts = await self.pipeline.invoke_hook(
            HOOK,
            CALL,
            context or GlobalContext("r"),
            extensions=extensions or full_extensions(),
        )
        return result

    async def outcome(self) -> dict[str, Any]:
        """Return everything that can be compared about one call."""
        shared = GlobalContext("r")
        try:
            result = await self.call(context=shared)
        except PluginViolationError as error:
            by = None if error.violation is None else error.violation.plugin_name
            return {"violated": error.message, "by": by}
        except PluginError as error:
            last = (error.executions or [])[-1]
            return {"failed": error.error.message, "status": last.status}
        assert self.contexts is not None
        (context,) = self.contexts.values()
        records = []
        for record in result.executions:
            data = record.model_dump()
            records.append({k: v for k, v in data.items() if k not in _OF_THE_PLACE})
        return {
            "continue": result.continue_processing,
            "payload": result.modified_payload,
            "extensions": result.modified_extensions,
            "violation": result.violation,
            "metadata": result.metadata,
            "retry": result.retry_delay_ms,
            "records": records,
            "state": context.state,
            "shared": shared.state,
        }

    @property
    def worker_pid(self) -> int:
        (live,) = self.pipeline.live
        assert isinstance(live.started, CagedPlugin)
        assert live.started._worker is not None
        return live.started._worker.process.pid


_OF_THE_PLACE = {"plugin_id", "plugin_kind", "duration_ns", "config_keys"}


@requirement("EX-AMB-16")
@pytest.mark.parametrize(
    ("act", "capabilities", "on_error"),
    [
        ("nothing", [], "fail"),
        ("echo", [], "fail"),
        ("edit", ["write_headers"], "fail"),
        ("edit", ["read_headers"], "fail"),
        ("edit", [], "fail"),
        ("forge", ["append_labels", "write_headers"], "fail"),
        ("forge", [], "fail"),
        ("shrink", ["append_labels"], "ignore"),
        ("shrink", ["append_labels"], "fail"),
        ("shrink", [], "fail"),
        ("opaque", [], "fail"),
        ("deny", [], "fail"),
        ("raise", [], "ignore"),
        ("raise", [], "fail"),
        ("violate", [], "ignore"),
    ],
)
async def test_a_plugin_does_the_same_here_and_in_a_cage(
    spawner: Spawner, act: str, capabilities: list[str], on_error: str
) -> None:
    here = await Place.make(None, act, *capabilities, on_error=on_error)
    caged = await Place.make(spawner, act, *capabilities, on_error=on_error)
    assert await caged.outcome() == await here.outcome()
    await caged.pipeline.close()


@requirement("EX-AMB-21")
@pytest.mark.timeout(900)  # the first run installs the MCP SDK
async def test_every_kind_runs_as_written_down_and_no_other_kind_is_taken(
    spawner: Spawner,
) -> None:
    # One class as a dotted path and caged: equal results, denials, extensions and records.
    for act, capabilities in (("edit", ["write_headers"]), ("deny", []), ("raise", [])):
        here = await Place.make(None, act, *capabilities)
        caged = await Place.make(spawner, act, *capabilities)
        assert await caged.outcome() == await here.outcome()
        assert caged.worker_pid != os.getpid()
        (live,) = caged.pipeline.live
        assert live.config.config is not None
        await caged.pipeline.close()
    # No network, and no files but its code.
    looks = await Place.make(spawner, "look", options={"secret_file": __file__})
    assert set((await looks.call()).metadata["reach"].values()) == {False}
    await looks.pipeline.close()
    # The worker dies in mid-call: on_error decides, and the next call has a fresh one.
    for on_error in ("ignore", "fail"):
        place = await Place.make(spawner, "hang", on_error=on_error, timeout_s=20)
        first = place.worker_pid
        running = asyncio.get_running_loop().create_task(place.call())
        while not _is_waiting(place):  # noqa: ASYNC110 - there is no event for a call on its way
            await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        if on_error == "fail":
            with pytest.raises(PluginError):
                await running
        else:
            assert (await running).executions[0].status is ControlExecutionStatus.ERROR
        again = asyncio.get_running_loop().create_task(place.call())
        while not _is_waiting(place):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        assert place.worker_pid != first
        again.cancel()
        await place.pipeline.close()
    # External talks to the MCP server of its table; one that answers nonsense is an error.
    external = await _load(spawner, name="denies", kind="external", mcp=server_table())
    result, _ = await external.invoke_hook(HOOK, CALL, GlobalContext("r"))
    assert result.violation is not None
    assert result.violation.code == "NOPE"
    await external.close()
    nonsense = await _load(spawner, name="nonsense", kind="external", mcp=server_table())
    with pytest.raises(PluginError):
        await nonsense.invoke_hook(HOOK, CALL, GlobalContext("r"))
    await nonsense.close()
    # Everything else is refused when it is loaded, with the known kinds or the way out.
    for kind, words in (("wasm", ("dotted", "caged", "external")), ("isolated_venv", ("caged",))):
        refused = await _load(spawner, name="p", kind=kind)
        (problem,) = refused.status.problems
        assert kind in problem.message
        assert all(word in problem.fix for word in words)
        assert not refused.plans


async def _load(spawner: Spawner, **entry: Any) -> Pipeline:
    clock = SystemClock()
    pipeline = Pipeline(clock, Ids(clock), kinds=plugin_kinds(spawner))
    await pipeline.load_configs([PluginConfig.model_validate({"hooks": [HOOK], **entry})])
    return pipeline


async def test_a_worker_that_dies_is_a_failed_plugin_and_the_next_call_has_a_fresh_one(
    spawner: Spawner,
) -> None:
    equal = await Place.make(spawner, "edit", "write_headers")
    here = await Place.make(None, "edit", "write_headers")
    assert await equal.outcome() == await here.outcome()
    await equal.pipeline.close()

    place = await Place.make(spawner, "hang", on_error="ignore")
    first = place.worker_pid
    running = asyncio.get_running_loop().create_task(place.call())
    while not _is_waiting(place):  # noqa: ASYNC110 - there is no event for a call on its way
        await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    result = await running
    assert result.continue_processing is True
    assert result.executions[0].status is ControlExecutionStatus.ERROR

    strict = await Place.make(spawner, "exit")
    pid = strict.worker_pid
    with pytest.raises(PluginError):
        await strict.call()
    with pytest.raises(PluginError):
        await strict.call()
    (live,) = strict.pipeline.live
    assert isinstance(live.started, CagedPlugin)
    fresh = await live.started._ready()
    assert fresh.process.pid != pid
    await strict.pipeline.close()
    await place.pipeline.close()

    clock = SystemClock()
    refused = Pipeline(clock, Ids(clock), kinds={"caged": CagedKind(spawner)})
    report = await refused.load_configs([PluginConfig(name="p", kind="wasm", hooks=[HOOK])])
    assert not report.in_force
    assert "caged" in report.problems[0].fix


def _is_waiting(place: Place) -> bool:
    (live,) = place.pipeline.live
    assert isinstance(live.started, CagedPlugin)
    worker = live.started._worker
    return worker is not None and worker.connection.open_calls > 0


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
    (live,) = place.pipeline.live
    assert isinstance(live.started, CagedPlugin)
    worker = live.started._worker
    assert worker is not None
    assert (await place.call()).executions[0].status is ControlExecutionStatus.TIMEOUT
    async with asyncio.timeout(20):
        await worker.wait()
    assert worker.process.pid not in {process.pid for process in spawner.running}
    await live.started._ready()
    assert place.worker_pid != worker.process.pid
    await place.pipeline.close()


@pytest.mark.parametrize("act", ["print", "nonsense"])
async def test_a_plugin_that_prints_or_writes_nonsense_breaks_nothing(
    spawner: Spawner, act: str
) -> None:
    place = await Place.make(spawner, act, on_error="ignore")
    for _ in range(2):
        assert (await place.call()).continue_processing is True
    await place.pipeline.close()


@requirement("EX-AMB-19")
async def test_hidden_values_never_enter_the_cage(spawner: Spawner, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"secret_file": str(secret), "port": server.getsockname()[1]}
        hidden = Extensions(
            request=RequestExtension(environment="MARK-hidden-visible-000000"),
            agent=AgentExtension(input="MARK-hidden-agent-000001"),
            http=HttpExtension(headers={"authorization": "MARK-hidden-header-000002"}),
            security=SecurityExtension(
                labels=frozenset({"MARK-hidden-label-000003"}),
                subject=SubjectExtension(
                    id="MARK-hidden-id-000004",
                    type=SubjectType.USER,
                    claims={"c": "MARK-hidden-claim-000005"},
                ),
            ),
        )
        context = GlobalContext(
            "r",
            user="MARK-hidden-user-000006",
            user_context=UserContext(user_id="MARK-hidden-identity-000007"),
        )
        blind = await Place.make(spawner, "look", options=options)
        result = await blind.call(hidden, context)
        assert result.metadata["found"] == ["MARK-hidden-visible-000000"]
        assert not any(result.metadata["reach"].values()), result.metadata["reach"]
        await blind.pipeline.close()

        seeing = await Place.make(spawner, "look", *ALL_CAPABILITIES, options=options)
        found = (await seeing.call(hidden, context)).metadata["found"]
        assert len(found) == 8, "the search itself works"
        await seeing.pipeline.close()
    explained = Path(__file__).parents[3] / "docs/explanation/why-extensions-are-filtered.md"
    text = explained.read_text(encoding="utf-8")
    assert "same process" in text
    assert "kind: caged" in text


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
