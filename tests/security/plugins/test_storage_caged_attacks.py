"""All attacks on storage, made by one caged process, which lives through every one of them."""

from __future__ import annotations

import json
from pathlib import Path

from fakes.asking_plugin import asking_lab
from kaged.plugins.states import PluginState
from kaged.plugins.storage import StorageQuota
from requirements import requirement
from security.plugins.storage_attacks import ATTACKS, DENIED, INVALID, SECRETS

WRITE = "kaged:storage:write"


@requirement("PH-STOR-04", "PH-STOR-05")
async def test_a_caged_plugin_tries_everything_gets_nothing_and_goes_on(tmp_path: Path) -> None:
    async with asking_lab(tmp_path) as asking:
        arena = asking.arena
        await arena.store.projects.upsert(f"/srv/{SECRETS[1]}", "slug", SECRETS[1])
        victim = await asking.plugin("victim", WRITE)
        for sql in (
            "CREATE TABLE secrets (id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT)",
            "CREATE INDEX by_token ON secrets (token)",
            f"INSERT INTO secrets (token) VALUES ('{SECRETS[0]}')",
        ):
            assert "result" in await asking.sql(victim, "exec", sql)
        await arena.exec("attacker-x", "CREATE TABLE y (a)")
        await arena.exec("attacker-x", f"INSERT INTO y VALUES ('{SECRETS[2]}')")
        attacker = await asking.plugin("attacker", WRITE)
        for sql in (
            "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT)",
            "CREATE TABLE tags (note, tag)",
            "INSERT INTO notes (body) VALUES ('own')",
        ):
            assert "result" in await asking.sql(attacker, "exec", sql)
        denied = 0
        for attack in ATTACKS:
            if "\ud800" in attack.sql:
                continue  # no such text gets through UTF-8
            answer = await asking.sql(attacker, attack.method, attack.sql, *attack.values)
            assert answer["error"]["code"] == attack.code, (attack, answer)
            text = json.dumps(answer)
            assert not [secret for secret in SECRETS if secret in text], attack
            assert attacker.state is PluginState.RUNNING
            denied += attack.code == DENIED
        spawned = [data["name"] for _, data in await asking.lab.seen("plugin.spawned")]
        assert spawned == ["victim", "attacker"]  # nobody was started again
        assert len(await arena.denied()) == denied
        answer = await asking.sql(victim, "query", "SELECT token FROM secrets")
        assert answer["result"]["rows"] == [{"token": SECRETS[0]}]
        assert INVALID in {attack.code for attack in ATTACKS}


async def test_a_plugin_that_floods_storage_leaves_the_others_alone(tmp_path: Path) -> None:
    hasty = StorageQuota(read_time_s=0.2, write_time_s=0.3)
    async with asking_lab(tmp_path, {"flooding": hasty}) as asking:
        flooding = await asking.plugin("flooding", WRITE)
        quiet = await asking.plugin("quiet", WRITE)
        await asking.sql(flooding, "exec", "CREATE TABLE t (a)")
        await asking.sql(quiet, "exec", "CREATE TABLE t (a)")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        for _ in range(3):
            answer = await asking.sql(flooding, "query", f"{endless} SELECT max(i) FROM n")
            assert answer["error"]["data"]["limit"] == "time_s"
            answer = await asking.sql(flooding, "exec", f"{endless} INSERT INTO t SELECT i FROM n")
            assert answer["error"]["code"] in {-32000, -32005}
            answer = await asking.sql(quiet, "exec", "INSERT INTO t VALUES (1)")
            assert answer == {"result": {"rows_affected": 1}}
        assert flooding.state is quiet.state is PluginState.RUNNING
