"""The tables of plugins as an operator meets them: who has them, where, and when they go."""

from __future__ import annotations

import json
from pathlib import Path

from fakes.host_over_http import HttpHost, write_stub
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


@requirement("PH-INST-30")
def test_a_users_own_store_is_among_their_data() -> None:
    user = Locations.from_env({"HOME": "/home/ada", "XDG_DATA_HOME": "/home/ada/data"})
    assert user.plugins_dir == Path("/home/ada/data/kaged/plugins")
