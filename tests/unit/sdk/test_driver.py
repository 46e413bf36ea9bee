"""The in-memory driver that plugin authors test with, and what it shows of the SDK."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from kaged.base import KagedError
from kaged.sdk import CallContext, Plugin, PluginError, RpcError, base64_text, create_plugin
from kaged.sdk.testing import PluginDriver
from requirements import requirement


@requirement("PH-METH-02")
async def test_a_plugin_without_handlers_takes_every_system_method() -> None:
    async with PluginDriver(Plugin("bare", "0.1.0"), config={"a": 1}) as host:
        assert host.initialize_result["methods"] == []
        assert await host.request("ping", {}) == {"status": "ok"}
        await host.request("projects.activated", {"project": "music", "config": {}})
        await host.request("projects.deactivated", {"project": "music"})
    # initialize, config.update, initialized and shutdown were the driver's own.


@requirement("PH-SDK-02")
async def test_create_plugin_takes_the_documents_arguments() -> None:
    seen: list[Any] = []
    plugin = create_plugin(
        "oh-my-pi",
        "1.4.2",
        methods={"presets.list": lambda params, context: {"presets": [params["filter"]]}},
        notifications=["catalog.updated"],
        on_config_update=seen.append,
        on_shutdown=lambda: seen.append("bye"),
    )
    async with PluginDriver(plugin, config={"preset_dir": "/x"}) as host:
        assert await host.call("presets.list", {"filter": "web"}) == {"presets": ["web"]}
        plugin.notify("catalog.updated", {"entries_added": 3})
        assert host.notifications == [("catalog.updated", {"entries_added": 3})]
    assert seen == [{"preset_dir": "/x"}, "bye"]


async def test_decorators_declare_the_same_things() -> None:
    plugin = Plugin("p-x", "1.0.0")
    seen: list[Any] = []

    @plugin.method("a.b")
    async def _method(params: dict[str, Any], context: CallContext) -> str | None:
        return context.agent_path

    @plugin.tool("recall")
    def _tool(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
        return params

    @plugin.hook("pre_compact")
    def _hook(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
        return {"retain": [context.project or ""]}

    @plugin.project_activated
    def _activated(project: str, config: dict[str, Any]) -> None:
        seen.append((project, config))

    @plugin.project_deactivated
    def _deactivated(project: str, config: dict[str, Any]) -> None:
        seen.append(project)

    plugin.config(seen.append)
    plugin.shutdown(lambda: seen.append("bye"))
    async with PluginDriver(plugin) as host:
        assert await host.call("a.b", agent_path="primary") == "primary"
        assert await host.call("p-x.recall", {"q": 1}) == {"q": 1}
        assert await host.hook("pre_compact") == {"retain": ["test"]}
        await host.request("projects.activated", {"project": "m", "config": {"k": 1}})
        await host.request("projects.deactivated", {"project": "m"})
    assert seen == [("m", {"k": 1}), "m", "bye"]


def test_mistakes_in_declarations_are_told_at_once() -> None:
    plugin = Plugin("p", "1.0.0")
    plugin.method("a.b")(lambda params, context: None)
    with pytest.raises(ValueError, match="two handlers"):
        plugin.method("a.b")(lambda params, context: None)
    with pytest.raises(ValueError, match="unknown hook"):
        plugin.hook("on_compact")
    with pytest.raises(RuntimeError, match="not started"):
        plugin.wait_for(asyncio.sleep(0))
    with pytest.raises(KagedError, match="reserved"):
        PluginError("x", number=-32100)


async def test_plain_handlers_may_use_storage_from_their_thread() -> None:
    plugin = Plugin("p", "1.0.0")

    @plugin.method("rows.count")
    def _count(params: dict[str, Any], context: CallContext) -> int:
        return len(plugin.wait_for(plugin.storage.query("SELECT * FROM t")).rows)

    answers = {
        "kaged.storage.query": lambda params: {"rows": [{"a": 1}, {"a": 2}], "columns": ["a"]}
    }
    async with PluginDriver(plugin, host_methods=answers) as host:
        assert await host.call("rows.count") == 2


async def test_an_unplayed_host_method_is_refused() -> None:
    plugin = Plugin("p", "1.0.0")

    @plugin.method("rows.count")
    async def _count(params: dict[str, Any], context: CallContext) -> int:
        return (await plugin.storage.exec("DELETE FROM t")).rows_affected

    async with PluginDriver(plugin) as host:
        with pytest.raises(RpcError, match="no host method"):
            await host.call("rows.count")


async def test_a_cancelled_call_is_answered_as_cancelled() -> None:
    plugin = Plugin("p", "1.0.0")
    started = asyncio.Event()

    @plugin.method("wait.forever")
    async def _wait(params: dict[str, Any], context: CallContext) -> None:
        started.set()
        await asyncio.Event().wait()

    async with PluginDriver(plugin) as host:
        call = asyncio.get_running_loop().create_task(host.call("wait.forever"))
        await started.wait()
        host.tell("kaged.cancel", {"id": 2})
        with pytest.raises(RpcError, match="cancelled"):
            await call


async def test_a_plain_handler_sees_that_its_call_was_cancelled() -> None:
    plugin = Plugin("p", "1.0.0")
    started, looked, told = threading.Event(), threading.Event(), threading.Event()
    seen: list[bool] = []

    @plugin.method("wait.aside")
    def _wait(params: dict[str, Any], context: CallContext) -> str:
        seen.append(context.cancelled)
        started.set()
        told.wait(5)
        seen.append(context.cancelled)
        looked.set()
        return "too late"

    async with PluginDriver(plugin) as host:
        call = asyncio.get_running_loop().create_task(host.call("wait.aside"))
        await asyncio.to_thread(started.wait, 5)
        host.tell("kaged.cancel", {"id": 2})
        with pytest.raises(RpcError, match="cancelled"):
            await call
        told.set()
        await asyncio.to_thread(looked.wait, 5)
        assert await host.request("ping", {}) == {"status": "ok"}
        # Answered once: what the handler gave afterwards went nowhere.
        assert [message["id"] for message in host.sent] == [1, 2, 3]
    assert seen == [False, True]


async def test_a_call_cancelled_before_it_began_is_answered_and_never_runs() -> None:
    plugin = Plugin("p", "1.0.0")
    ran: list[int] = []

    @plugin.method("run.never")
    async def _run(params: dict[str, Any], context: CallContext) -> None:
        ran.append(1)

    async with PluginDriver(plugin) as host:
        call = asyncio.get_running_loop().create_task(host.call("run.never"))
        while host._next_id < 3:
            await asyncio.sleep(0)
            host.tell("kaged.cancel", {"id": 2})
        with pytest.raises(RpcError, match="cancelled"):
            await call
    assert ran == []


@pytest.mark.parametrize("raw", [{"id": 2}, {"id": True}, {"id": [2]}, {}, []])
async def test_a_cancellation_of_nothing_does_nothing(raw: Any) -> None:
    async with PluginDriver(Plugin("p", "1.0.0")) as host:
        host._deliver({"jsonrpc": "2.0", "method": "kaged.cancel", "params": raw})
        assert await host.request("ping", {}) == {"status": "ok"}


async def test_a_plain_function_may_give_something_to_await() -> None:
    async def later(value: int) -> int:
        await asyncio.sleep(0)
        return value

    plugin = create_plugin("p", "1.0.0", methods={"a.b": lambda params, context: later(7)})
    async with PluginDriver(plugin) as host:
        assert await host.call("a.b") == 7


async def test_params_that_are_no_object_are_refused() -> None:
    plugin = create_plugin("p", "1.0.0", methods={"a.b": lambda params, context: 1})
    async with PluginDriver(plugin) as host:
        host._deliver({"jsonrpc": "2.0", "id": 9, "method": "a.b", "params": [1]})
        assert host.sent[-1]["error"]["code"] == -32602


@pytest.mark.parametrize(
    "value", [float("nan"), b"\x00", {1, 2}, "\ud800", "x" * (4 * 1024 * 1024 + 1)]
)
async def test_results_that_cannot_travel_become_errors(value: object) -> None:
    plugin = create_plugin("p", "1.0.0", methods={"a.b": lambda params, context: value})
    async with PluginDriver(plugin) as host:
        with pytest.raises(RpcError) as caught:
            await host.call("a.b")
    assert caught.value.number == -32603


async def test_a_failing_shutdown_handler_still_ends_the_plugin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken() -> None:
        raise OSError("disk")

    async with PluginDriver(create_plugin("p", "1.0.0", on_shutdown=broken)) as host:
        pass
    assert host.sent[0]["result"]["name"] == "p"
    assert json.loads(capsys.readouterr().err)["error"] == "OSError('disk')"


def test_base64_text_is_plain_ascii() -> None:
    assert base64_text(b"\x00\xff") == "AP8="
