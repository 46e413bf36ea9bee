"""The plugin that every SDK's contract tests talk to, written with the Python SDK."""

from __future__ import annotations

import asyncio
from typing import Any

from kaged.sdk import CallContext, ConfigInvalid, InvalidParams, PluginError, create_plugin

gate = asyncio.Event()


def say(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    return {"params": params, "agent_path": context.agent_path, "operator": context.user_id}


async def wait(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    await gate.wait()
    return {"n": params["n"]}


async def open_gate(params: dict[str, Any], context: CallContext) -> None:
    gate.set()


def fail(params: dict[str, Any], context: CallContext) -> None:
    kind = params["kind"]
    if kind == "domain":
        raise PluginError("out of cheese", detail={"cheese": 0})
    if kind == "own":
        raise PluginError("mine", number=-32050)
    if kind == "params":
        raise InvalidParams("kind is wrong")
    if kind == "reserved":
        raise PluginError("not mine", number=-32500)
    raise RuntimeError("a bug")


def noise(params: dict[str, Any], context: CallContext) -> str:
    print("this is not JSON")  # noqa: T201 - a stray print is what the test is about
    return "printed"


def raw(params: dict[str, Any], context: CallContext) -> bytes:
    return b"\x00\x01"


async def store(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    touched = await plugin.storage.exec("INSERT INTO t VALUES (?)", ["x"])
    found = await plugin.storage.query("SELECT * FROM t")
    tables = (await plugin.storage.schema()).tables
    return {"touched": touched.rows_affected, "rows": found.rows, "tables": tables}


async def batch(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    second = params.get("second", "DELETE FROM t")
    done = await plugin.storage.batch([("INSERT INTO t VALUES (?)", ["x"]), (second, ())])
    return {"rows_affected": done.rows_affected, "statements": done.statements}


async def block(params: dict[str, Any], context: CallContext) -> None:
    async with plugin.storage.transaction() as together:
        await together.exec("DELETE FROM t")
        if params.get("fail"):
            raise PluginError("changed my mind")


async def wait_long(params: dict[str, Any], context: CallContext) -> None:
    plugin.notify("catalog.updated", {"started": params["n"]})
    try:
        await asyncio.Event().wait()
    finally:
        plugin.notify("catalog.updated", {"cancelled": params["n"]})


def config(new: dict[str, Any]) -> None:
    if new.get("bad"):
        raise ConfigInvalid("bad is set")
    if new.get("buggy"):
        raise KeyError("buggy")


async def bye() -> None:
    plugin.log.info("flushed")


async def ask_early() -> None:
    rows = await plugin.storage.query("SELECT 1 AS one")
    plugin.log.info("asked early", rows=rows.rows)


plugin = create_plugin(
    "sample",
    "1.2.3",
    methods={
        "echo.say": say,
        "sample.wait": wait,
        "gate.open": open_gate,
        "fail.now": fail,
        "print.noise": noise,
        "bytes.raw": raw,
        "store.all": store,
        "store.batch": batch,
        "store.block": block,
        "wait.long": wait_long,
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
