"""A plugin on the Python SDK, for tests that install it; `sdk_sample.mjs` is its twin."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

sys.path.insert(0, "/opt/kaged/sdk/python")

from kaged.sdk import CallContext, ConfigInvalid, PluginError, RpcError, create_plugin  # noqa: E402 - above

gate = asyncio.Event()
waiting = 0
configs: list[dict[str, Any]] = []


def say(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    return {
        "params": params,
        "context": {
            "operator_id": context.operator_id,
            "project_id": context.project_id,
            "agent_path": context.agent_path,
            "session_id": context.session_id,
            "request_id": context.request_id,
        },
        "user_id": context.user_id,
        "config": context.config,
        "configs": configs,
    }


async def wait(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    global waiting
    waiting += 1
    await gate.wait()
    return {"n": params["n"]}


async def count(params: dict[str, Any], context: CallContext) -> int:
    return waiting


async def open_gate(params: dict[str, Any], context: CallContext) -> str:
    gate.set()
    return "open"


def fail(params: dict[str, Any], context: CallContext) -> None:
    raise PluginError("out of cheese", number=-32050, detail={"cheese": 0})


def noise(params: dict[str, Any], context: CallContext) -> str:
    print("this is not JSON")  # noqa: T201 - a stray print is what the test is about
    plugin.log.info("an ordinary line", shelf=3)
    return "printed"


async def store(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    await plugin.storage.exec("CREATE TABLE IF NOT EXISTS t (a TEXT)")
    touched = await plugin.storage.exec("INSERT INTO t VALUES (?)", ["x"])
    found = await plugin.storage.query("SELECT * FROM t")
    denied = None
    try:
        await plugin.storage.query("SELECT * FROM plugin_other_t")
    except RpcError as error:
        denied = error.number
    return {
        "touched": touched.rows_affected,
        "rows": found.rows,
        "tables": (await plugin.storage.schema()).tables,
        "denied": denied,
    }


def tell(params: dict[str, Any], context: CallContext) -> str:
    plugin.notify("catalog.updated", params)
    return "told"


def config(new: dict[str, Any]) -> None:
    if new.get("bad"):
        raise ConfigInvalid("bad is set")
    configs.append(new)


async def bye() -> None:
    plugin.log.info("flushed")


plugin = create_plugin(
    "sdk-sample",
    "1.0.0",
    methods={
        "echo.say": say,
        "slow.wait": wait,
        "slow.count": count,
        "gate.open": open_gate,
        "fail.now": fail,
        "print.noise": noise,
        "store.all": store,
        "tell.all": tell,
    },
    notifications=["catalog.updated"],
    on_config_update=config,
    on_shutdown=bye,
    tools={"retain": say},
    hooks={"on_session_start": lambda params, context: {"inject": f"hello {context.agent_path}"}},
)

if __name__ == "__main__":
    plugin.notify("catalog.updated", {"entries_added": 3})
    plugin.start()
