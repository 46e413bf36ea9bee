"""Storage as a caged plugin meets it: over the wire, through the conversation, to the database."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.asking_plugin import AskingLab, asking_lab
from kaged.plugins.states import PluginState
from requirements import requirement

WRITE = "kaged:storage:write"


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[AskingLab]:
    """Yield caged plugins that ask the host for storage."""
    async with asking_lab(tmp_path) as lab:
        yield lab


@requirement("PH-METH-09", "PH-METH-10", "PH-METH-11")
async def test_a_caged_plugin_makes_fills_and_reads_its_table(asking: AskingLab) -> None:
    plugin = await asking.plugin("oh-my-pi", WRITE)
    create = "CREATE TABLE presets (id INTEGER PRIMARY KEY, name TEXT, size REAL)"
    assert await asking.sql(plugin, "exec", create) == {"result": {"rows_affected": 0}}
    insert = "INSERT INTO presets (name, size) VALUES (?, ?), ('second', NULL)"
    answer = await asking.sql(plugin, "exec", insert, "first", 1.5)
    assert answer == {"result": {"rows_affected": 2}}
    answer = await asking.sql(plugin, "query", "SELECT size, name FROM presets ORDER BY id")
    assert answer == {
        "result": {
            "rows": [{"size": 1.5, "name": "first"}, {"size": None, "name": "second"}],
            "columns": ["size", "name"],
        }
    }
    answer = await asking.ask(plugin, "kaged.storage.schema", {})
    assert answer == {"result": {"tables": ["presets"]}}
    assert await asking.sql(plugin, "exec", "DELETE FROM presets") == {
        "result": {"rows_affected": 2}
    }


@requirement("PH-METH-12")
async def test_an_unknown_host_method_is_not_found(asking: AskingLab) -> None:
    plugin = await asking.plugin("notes", WRITE)
    for method in ("kaged.nothing", "kaged.storage.nothing", "nothing"):
        answer = await asking.ask(plugin, method, {})
        assert answer["error"]["code"] == -32601
    assert plugin.state is PluginState.RUNNING


@requirement("PH-METH-13")
async def test_wrong_params_are_invalid_and_absent_ones_are_none(asking: AskingLab) -> None:
    plugin = await asking.plugin("notes", WRITE)
    for method in ("exec", "query"):
        for params in (
            {},
            {"sql": 5},
            {"sql": None},
            {"sql": ["SELECT 1"]},
            {"sql": "SELECT 1", "params": {}},
            {"sql": "SELECT 1", "params": "x"},
            {"sql": "SELECT 1", "params": None},
        ):
            answer = await asking.ask(plugin, f"kaged.storage.{method}", params)
            assert answer["error"]["code"] == -32602, params
    answer = await asking.ask(plugin, "kaged.storage.query", {"sql": "SELECT 1 AS one"})
    assert answer["result"]["rows"] == [{"one": 1}]


@requirement("PH-STOR-01")
async def test_the_database_is_not_to_be_seen_in_the_cage(asking: AskingLab) -> None:
    plugin = await asking.plugin("notes", WRITE)
    await asking.sql(plugin, "exec", "CREATE TABLE t (a)")
    database = asking.arena.home.database
    assert database.exists()
    for path in (database, Path(f"{database}-wal"), Path(f"{database}-shm"), database.parent):
        assert "failed" in await asking.read(plugin, path), path
    own = plugin.installed.directory / "main.py"
    assert "read" in await asking.read(plugin, own)


@requirement("PH-STOR-18")
async def test_an_answer_longer_than_a_line_is_an_error_and_the_plugin_goes_on(
    asking: AskingLab,
) -> None:
    plugin = await asking.plugin("notes", WRITE)
    await asking.sql(plugin, "exec", "CREATE TABLE t (a)")
    for _ in range(6):
        await asking.sql(plugin, "exec", "INSERT INTO t VALUES (zeroblob(900000))")
    answer = await asking.sql(plugin, "query", "SELECT hex(a) AS a FROM t LIMIT 6")
    assert answer["error"]["code"] == -32000
    answer = await asking.sql(plugin, "query", "SELECT a FROM t")  # 5 MiB
    assert answer["error"]["code"] == -32000
    assert answer["error"]["data"]["limit"] == "result_bytes"
    answer = await asking.sql(plugin, "query", "SELECT count(*) AS n FROM t")
    assert answer["result"]["rows"] == [{"n": 6}]
    assert plugin.state is PluginState.RUNNING


async def test_a_transaction_dies_with_its_process(asking: AskingLab) -> None:
    plugin = await asking.plugin("notes", WRITE)
    await asking.sql(plugin, "exec", "CREATE TABLE t (a)")
    begun = await asking.ask(plugin, "kaged.storage.begin", {})
    transaction = begun["result"]["transaction"]
    params = {"sql": "INSERT INTO t VALUES (1)", "transaction": transaction}
    assert "result" in await asking.ask(plugin, "kaged.storage.exec", params)
    spawned = await asking.lab.until_event("plugin.spawned")
    os.kill(spawned["pid"], signal.SIGKILL)
    await asking.lab.until(plugin, PluginState.CRASHED)
    asking.lab.wake(2)  # the health check of the old process, the restart of the new one
    await asking.lab.until(plugin, PluginState.RUNNING)
    answer = await asking.ask(plugin, "kaged.storage.commit", {"transaction": transaction})
    assert answer["error"]["data"] == {"kind": "no_transaction"}
    answer = await asking.sql(plugin, "query", "SELECT count(*) AS n FROM t")
    assert answer["result"]["rows"] == [{"n": 0}]
