"""The tables of plugins as an operator meets them: who has them, where, and when they go."""

from __future__ import annotations

import json
from pathlib import Path

from fakes.host_over_http import HttpHost, http_host, write_stub
from fakes.running_daemon import ANY_PORT
from kaged.config.locations import Locations
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"env": True}]}}


@requirement("PH-HAND-06", "PH-STOR-15", "PH-ERR-09", "PH-FAIL-06")
async def test_storage_is_for_those_who_asked_for_it(host: HttpHost, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    query = {"sql": "SELECT 1 AS one", "params": []}
    other = {"sql": "SELECT * FROM plugin_rich_t", "params": []}
    on = {
        "s.query": [{"ask": ["kaged.storage.query", query]}],
        "s.exec": [{"ask": ["kaged.storage.exec", {"sql": "CREATE TABLE t (a)", "params": []}]}],
        "s.schema": [{"ask": ["kaged.storage.schema", {}]}],
        "s.steal": [{"ask": ["kaged.storage.query", other]}],
    }
    grant = f"write:fs:{logs}"
    for name, capabilities in (("poor", [grant]), ("rich", [grant, "kaged:storage:write"]),
                               ("reader", [grant, "kaged:storage:read"])):  # fmt: skip
        behaviour = {"on": on, "log": str(logs / name)}
        await host.running(
            write_stub(
                tmp_path / name, behaviour, name=name, capabilities=capabilities, methods=list(on)
            )
        )
        greeting = json.loads((logs / name).read_text(encoding="utf-8").splitlines()[0])
        assert greeting["params"]["storage_available"] is (name != "poor")
    for method in on:
        assert (await host.call("poor", method))["error"]["code"] == -32003
    assert (await host.call("rich", "s.query"))["rows"] == [{"one": 1}]
    assert "error" not in await host.call("rich", "s.exec")
    assert (await host.call("rich", "s.schema"))["tables"] == ["t"]
    for method in ("s.exec", "s.steal"):
        assert (await host.call("reader", method))["error"]["code"] == -32003
    denied = [row["data"]["name"] for row in await host.events("plugin.storage_denied")]
    assert denied.count("poor") == 4
    assert denied.count("reader") == 2
    for name in ("poor", "reader"):
        assert (await host.get(f"/plugins/{name}"))["state"] == "running"


@requirement("PH-STOR-14")
async def test_uninstalling_drops_this_plugins_tables_and_says_so(
    host: HttpHost, tmp_path: Path
) -> None:
    make = [{"ask": ["kaged.storage.exec", {"sql": "CREATE TABLE t (a)", "params": []}]}]
    list_ = [{"ask": ["kaged.storage.schema", {}]}]
    on = {"on": {"a.b": make, "c.d": list_}}
    # One name is the beginning of the other: their tables must be told apart (PH-AMB-31).
    for name in ("mem", "mem-two"):
        write = ["kaged:storage:write"]
        await host.running(write_stub(tmp_path / name, on, name=name, capabilities=write))
        await host.call(name)
    await host.ask("DELETE", "/plugins/mem?force=true")
    (row,) = await host.events("plugin.uninstalled")
    assert row["data"] == {"name": "mem", "version": "1.0.0", "tables": ["t"]}
    assert (await host.call("mem-two", "c.d"))["tables"] == ["t"]
    await host.running(tmp_path / "mem")
    assert (await host.call("mem", "c.d"))["tables"] == []


@requirement("PH-INST-30")
async def test_the_store_is_where_the_deployment_says(home: Path, tmp_path: Path) -> None:
    async with http_host(home) as host:
        await host.install(write_stub(tmp_path / "s", ECHO))
    assert (home / "plugins" / "stub").is_dir()
    user = Locations.from_env({"HOME": "/home/ada", "XDG_DATA_HOME": "/home/ada/data"})
    assert user.plugins_dir == Path("/home/ada/data/kaged/plugins")
    own = tmp_path / "own-store"
    async with http_host(tmp_path / "h2", f'{ANY_PORT}[plugins]\ndir = "{own}"\n') as host:
        await host.running(write_stub(tmp_path / "s", ECHO))
        assert (own / "stub" / "main.py").is_file()
        assert not (tmp_path / "h2" / "plugins" / "stub").exists()
