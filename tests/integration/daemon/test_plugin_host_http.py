"""The plugin host behind its HTTP routes: consent, knobs, reload, export, metrics; real cages."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from fakes.git_repo import plugin_repository
from fakes.host_over_http import HttpHost, http_host, write_project, write_stub
from fakes.running_daemon import ANY_PORT
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}]}}


def needs(source: str | None = "./tools/stub", **more: Any) -> dict[str, Any]:
    declared = {"package": "@scope/stub", **more}
    if source is not None:
        declared["source"] = source
    return {"plugins": {"stub": declared}}


# -- consent -----------------------------------------------------------------------------------


@requirement("PH-INST-11")
async def test_a_missing_plugin_is_one_question_and_the_project_is_pending(
    host: HttpHost, tmp_path: Path
) -> None:
    root = write_project(tmp_path / "boats", needs())
    write_stub(root / "tools" / "stub", ECHO, capabilities=["net:*"])
    loaded = await host.load(root)
    assert loaded["state"] == "pending"
    (asked,) = await host.consents()
    assert (asked["project_id"], asked["name"], asked["step"]) == (loaded["id"], "stub", "install")
    assert (asked["source"], asked["capabilities"]) == ("./tools/stub", ["net:*"])
    assert asked["prompt"]["version"] == "1.0.0"
    assert await host.get("/plugins") == {"items": []}
    await host.post(f"/projects/{loaded['id']}/reload")
    assert [one["id"] for one in await host.consents()] == [asked["id"]]


async def test_a_yes_installs_for_this_project_and_takes_the_project_in(
    host: HttpHost, tmp_path: Path
) -> None:
    root = write_project(tmp_path / "boats", needs())
    write_stub(root / "tools" / "stub", ECHO)
    project_id = (await host.load(root))["id"]
    (asked,) = await host.consents()
    wrong = {"allowed": True, "digest": "sha256:0000"}
    refused = await host.post(f"/consents/{asked['id']}", wrong, expect=403)
    assert refused["error"]["code"] == "plugin_consent_missing"
    yes = {"allowed": True, "digest": asked["prompt"]["digest"]}
    answer = await host.post(f"/consents/{asked['id']}", yes)
    assert answer == {"name": "stub", "done": True, "next": None}
    assert await host.consents() == []
    assert (await host.get(f"/projects/{project_id}"))["state"] == "loaded"
    state = await host.post("/plugins/stub/enable")
    assert (state["state"], state["local"], state["projects"]) == ("running", False, [project_id])
    rows = await host.events("plugin.consent_answered", "plugin.installed", "plugin.enabled")
    assert all(row["request_id"] for row in rows), rows
    assert [row["event"] for row in rows][-2:] == ["plugin.installed", "plugin.enabled"]
    other = write_project(tmp_path / "cars", needs())
    write_stub(other / "tools" / "stub", ECHO)
    assert (await host.load(other))["state"] == "pending"
    (second,) = await host.consents()
    assert (second["step"], second["project_root"]) == ("use", str(other))
    await host.post(f"/consents/{second['id']}", {"allowed": True})
    assert len((await host.get("/plugins/stub"))["projects"]) == 2


async def test_questions_and_noes_outlive_the_daemon(home: Path, tmp_path: Path) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.0.0"})
    config = ANY_PORT + '[plugins]\nallow_sources = ["git+file"]\n'
    declared = {
        "sample": {"package": "sample", "source": f"git+file://{bare}", "version": "^1"},
        "stub": {"package": "stub"},
    }
    root = write_project(tmp_path / "boats", {"plugins": declared})
    async with http_host(home, config) as host:
        project_id = (await host.load(root))["id"]
        asked = {one["name"]: one for one in await host.consents()}
        assert {name: one["step"] for name, one in asked.items()} == {
            "sample": "fetch",
            "stub": "path",
        }
        no = await host.post(f"/consents/{asked['stub']['id']}", {"allowed": False})
        assert no == {"name": "stub", "done": False, "next": None}
        yes = await host.post(f"/consents/{asked['sample']['id']}", {"allowed": True})
        assert yes["next"]["step"] == "install"
    async with http_host(home, config) as host:
        again = {one["name"]: one for one in await host.consents()}
        assert {name: one["id"] for name, one in again.items()} == {
            name: one["id"] for name, one in asked.items()
        }
        assert again["stub"]["declined"]
        # What was fetched is fetched again: the second question needs the files.
        assert (again["sample"]["step"], again["sample"]["declined"]) == ("fetch", False)
        assert (await host.get(f"/projects/{project_id}"))["state"] == "pending"
        second = await host.post(f"/consents/{again['sample']['id']}", {"allowed": True})
        digest = second["next"]["prompt"]["digest"]
        body = {"allowed": True, "digest": digest}
        assert (await host.post(f"/consents/{again['sample']['id']}", body))["done"]
        await host.post(f"/projects/{project_id}/reload")
        (asked_again,) = await host.consents()
        assert (asked_again["name"], asked_again["declined"]) == ("stub", False)
    async with http_host(home, config) as host:
        assert [one["id"] for one in await host.consents()] == [asked_again["id"]]
        assert [one["name"] for one in (await host.get("/plugins"))["items"]] == ["sample"]


async def test_an_operators_path_answers_for_a_missing_source(
    host: HttpHost, tmp_path: Path
) -> None:
    root = write_project(tmp_path / "boats", needs(None))
    await host.load(root)
    (asked,) = await host.consents()
    assert asked["source"] == "source not specified"
    path = str(write_stub(tmp_path / "mine", ECHO))
    answer = await host.post(f"/consents/{asked['id']}", {"allowed": True, "path": path})
    yes = {"allowed": True, "digest": answer["next"]["prompt"]["digest"]}
    assert (await host.post(f"/consents/{asked['id']}", yes))["done"]


@requirement("PH-FAIL-09")
async def test_a_source_that_is_not_there_leaves_the_project_pending(
    home: Path, tmp_path: Path
) -> None:
    config = ANY_PORT + '[plugins]\nallow_sources = ["git+file"]\n'
    async with http_host(home, config) as host:
        root = write_project(tmp_path / "boats", needs(f"git+file://{tmp_path}/nowhere.git"))
        project_id = (await host.load(root))["id"]
        (asked,) = await host.consents()
        failed = await host.post(f"/consents/{asked['id']}", {"allowed": True}, expect=502)
        assert failed["error"]["code"] == "plugin_source_unavailable"
        assert (await host.get(f"/projects/{project_id}"))["state"] == "pending"
        assert await host.get("/plugins") == {"items": []}
        (still,) = await host.consents()
        assert still["problem"]
        # The operator installs by hand instead.
        await host.install(write_stub(tmp_path / "mine", ECHO))
        assert (await host.get(f"/projects/{project_id}"))["state"] == "loaded"
        assert await host.consents() == []


async def test_a_plugin_that_goes_leaves_its_projects_pending(
    host: HttpHost, tmp_path: Path
) -> None:
    await host.running(write_stub(tmp_path / "mine", ECHO))
    project_id = (await host.load(write_project(tmp_path / "boats", needs())))["id"]
    assert await host.consents() == []
    await host.ask("DELETE", "/plugins/stub")
    assert (await host.get(f"/projects/{project_id}"))["state"] == "pending"
    assert len(await host.consents()) == 1
    await host.client.delete(f"/api/v1/projects/{project_id}")
    assert await host.consents() == []


async def test_an_unknown_question_is_not_found(host: HttpHost) -> None:
    answer = await host.post(
        "/consents/consent_01ARZ3NDEKTSV4RRFFQ69G5FAV", {"allowed": True}, expect=404
    )
    assert answer["error"]["code"] == "plugin_consent_unknown"


# -- changed files -----------------------------------------------------------------------------


async def test_changed_files_are_out_of_use_until_the_operator_agrees(
    home: Path, tmp_path: Path
) -> None:
    async with http_host(home) as host:
        await host.running(write_stub(tmp_path / "mine", ECHO))
    stored = home / "plugins" / "stub"
    write_stub(stored, ECHO, description="Not what it was.")
    async with http_host(home) as host:
        assert (await host.get("/plugins/stub"))["state"] == "disabled (consent needed)"
        shown = await host.get("/plugins/stub/renewal")
        assert shown["change"] == "renew"
        await host.post("/plugins/stub/renewal", {"digest": "sha256:00000000"}, expect=403)
        await host.post("/plugins/stub/renewal", {"digest": shown["digest"]})
        assert (await host.post("/plugins/stub/enable"))["state"] == "running"


# -- knobs -------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"budget": {"type": "integer", "default": 1, "maximum": 8}},
    "additionalProperties": False,
}
KNOBS = {
    "budget": {
        "type": "int_range",
        "label": "Budget",
        "min": 0,
        "max": 10,
        "step": 1,
        "default": 1,
        "binds_to": "config.budget",
    }
}
PROJECT = """# the boats
version: 1
project: boats
primary:
  model: m  # any
  system_prompt: x
  plugins:
    stub:
      package: stub
      config:
        budget: 3  # three is plenty
"""


@requirement("PH-KNOB-23")
async def test_an_agents_compaction_settings_show_the_knobs_of_who_takes_part(
    host: HttpHost, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"config_schema": SCHEMA, "knobs": KNOBS}
    hooks = ["pre_compact"]
    await host.running(
        write_stub(
            tmp_path / "squeeze",
            ECHO,
            name="squeeze",
            roles=["compactor"],
            hooks=hooks,
            **common,
        )
    )
    await host.running(write_stub(tmp_path / "plain", ECHO, name="plain", **common))
    plugins = {name: {"package": name, "config": {"budget": 3}} for name in ("squeeze", "plain")}
    root = write_project(tmp_path / "boats", {"plugins": plugins})
    project_id = (await host.load(root))["id"]
    await host.settle()
    (agent,) = (await host.get(f"/projects/{project_id}"))["tree"]["agents"]
    (shown,) = agent["compaction"]["plugins"]
    assert (shown["plugin"], shown["roles"]) == ("squeeze", ["compactor"])
    assert (shown["knobs"]["budget"]["value"], shown["knobs"]["budget"]["max"]) == (3, 10)


@requirement("PH-KNOB-02", "PH-CONF-19", "PH-AUD-30", "PH-AUD-33")
async def test_a_knob_is_shown_written_and_delivered(host: HttpHost, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    stub = write_stub(
        tmp_path / "mine",
        {**ECHO, "log": str(logs / "stub")},
        capabilities=[f"write:fs:{logs}"],
        config_schema=SCHEMA,
        knobs=KNOBS,
    )
    await host.running(stub)
    root = write_project(tmp_path / "boats", {})
    file = root / ".kaged" / "project.yaml"
    file.write_text(PROJECT, encoding="utf-8")
    project_id = (await host.load(root))["id"]
    await host.settle()
    shown = await host.get("/plugins/stub/knobs")
    assert shown == {"budget": {**KNOBS["budget"], "description": ""}}
    assert (await host.get("/plugins/nobody/knobs", expect=404))["error"]["code"] == (
        "plugin_not_found"
    )
    valued = await host.get(f"/plugins/stub/knobs?project_id={project_id}")
    assert (valued["budget"]["value"], valued["budget"]["is_set"]) == (3, True)
    before = updates(logs)
    for value, status in ((11, 422), (9, 422), ("many", 422)):
        body = {"project_id": project_id, "value": value}
        await host.ask("PUT", "/plugins/stub/knobs/budget", body, expect=status)
    assert (file.read_text(encoding="utf-8"), updates(logs)) == (PROJECT, before)
    body = {"project_id": project_id, "value": 5}
    change = await host.ask("PUT", "/plugins/stub/knobs/budget", body)
    assert (change["old"], change["new"], change["delivered"]) == (3, 5, True)
    assert file.read_text(encoding="utf-8") == PROJECT.replace("budget: 3", "budget: 5")
    await host.call("stub")
    assert updates(logs) == [*before, {"budget": 5}]
    (row,) = await host.events("plugin.knob_write")
    assert row["data"] == {
        "name": "stub",
        "knob": "budget",
        "agent_path": "primary",
        "request_id": row["request_id"],
    }
    called, returned = await host.events("plugin.method_called", "plugin.method_returned")
    assert called["request_id"].startswith("req_")
    assert called["request_id"] == returned["request_id"] == called["data"]["request_id"]


def updates(logs: Path) -> list[Any]:
    lines = (logs / "stub").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [one["params"]["config"] for one in found if one.get("method") == "config.update"]


async def test_a_new_process_starts_with_the_config_of_a_loaded_project(
    host: HttpHost, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    stub = write_stub(
        tmp_path / "mine",
        {**ECHO, "log": str(logs / "stub")},
        capabilities=[f"write:fs:{logs}"],
        config_schema=SCHEMA,
    )
    await host.running(stub)
    root = write_project(tmp_path / "boats", {})
    (root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
    await host.load(root)
    await host.settle()
    (logs / "stub").unlink()
    await host.post("/plugins/stub/restart")
    await host.call("stub")
    assert updates(logs) == [{"budget": 3}]


# -- hot reload, export, metrics ---------------------------------------------------------------


@requirement("PH-BEY-02")
async def test_a_reload_switches_without_a_gap_and_a_broken_one_changes_nothing(
    home: Path, tmp_path: Path
) -> None:
    stored = home / "plugins" / "stub"
    home.mkdir(mode=0o700)
    write_stub(stored, {"on": {"a.b": [{"result": "old"}]}})
    config = ANY_PORT + '[plugins]\nenabled = ["stub"]\n'
    async with http_host(home, config) as host:
        first = await host.get("/plugins/stub")
        assert first["state"] == "running"
        write_stub(stored, {"greet": "exit", "on": {"a.b": [{"result": "broken"}]}})
        failed = await host.post("/plugins/stub/reload", expect=502)
        assert failed["error"]["code"] == "plugin_start_failed"
        assert (await host.get("/plugins/stub"))["pid"] == first["pid"]
        assert await host.call("stub") == "old"
        (stored / "kaged-plugin.yaml").write_text("name: [", encoding="utf-8")
        await host.post("/plugins/stub/reload", expect=500)
        assert await host.call("stub") == "old"
        write_stub(
            stored,
            {"on": {"a.b": [{"result": "new"}], "e.f": [{"result": "more"}]}},
            version="2.0.0",
            methods=["a.b", "e.f"],
        )
        done = await host.post("/plugins/stub/reload")
        assert (done["state"], done["version"]) == ("running", "2.0.0")
        assert done["pid"] != first["pid"]
        assert (await host.call("stub"), await host.call("stub", "e.f")) == ("new", "more")
        stopped = await host.events("plugin.stopped")
        assert [row["data"]["reason"] for row in stopped] == ["reload"]
        assert await host.events("plugin.crashed") == []


@requirement("PH-BEY-13")
async def test_an_export_reads_back_as_equal_rows(host: HttpHost, tmp_path: Path) -> None:
    create = ["kaged.storage.exec", {"sql": "CREATE TABLE t (id INTEGER, name TEXT)", "params": []}]
    insert = [
        "kaged.storage.exec",
        {"sql": "INSERT INTO t VALUES (1, 'it''s'), (2, NULL)", "params": []},
    ]
    await host.running(
        write_stub(
            tmp_path / "mine",
            {"on": {"a.b": [{"ask": create}], "c.d": [{"ask": insert}]}},
            capabilities=["kaged:storage:write"],
        )
    )
    await host.call("stub", "a.b")
    await host.call("stub", "c.d")
    target = tmp_path / "out.sql"
    done = await host.post("/plugins/stub/export", {"path": str(target)})
    assert (done["tables"], done["rows"]) == (["t"], 2)
    again = sqlite3.connect(":memory:")
    again.executescript(target.read_text(encoding="utf-8"))
    assert again.execute("SELECT id, name FROM t ORDER BY id").fetchall() == [
        (1, "it's"),
        (2, None),
    ]
    again.close()
    await host.post("/plugins/stub/export", {"path": str(target)}, expect=503)
    await host.post("/plugins/nobody/export", {"path": str(target)}, expect=404)


@requirement("PH-BEY-04")
async def test_counters_of_a_plugin_move_with_its_traffic(host: HttpHost, tmp_path: Path) -> None:
    on = {"a.b": [{"echo": True}], "c.d": [{"error": [-32005, "busy"]}]}
    await host.running(write_stub(tmp_path / "mine", {"on": on}))
    for _ in range(3):
        await host.call("stub")
    await host.call("stub", "c.d", expect=503)
    seen = (await host.get("/plugins/stub"))["metrics"]
    assert (seen["calls"], seen["errors"]) == (4, {"-32005": 1})
    assert sum(seen["latency_ms"].values()) == 4
    text = (await host.client.get("/metrics")).text
    for line in (
        'kaged_plugin_state{plugin="stub",state="running"} 1.0',
        'kaged_plugin_calls_total{plugin="stub"} 4.0',
        'kaged_plugin_errors_total{code="-32005",plugin="stub"} 1.0',
        'kaged_plugin_restarts_total{plugin="stub"} 0.0',
        'kaged_plugin_hook_timeouts_total{plugin="stub"} 0.0',
        'kaged_plugin_notifications_dropped_total{plugin="stub"} 0.0',
        'kaged_plugin_call_seconds_count{plugin="stub"} 4.0',
        'kaged_plugin_call_seconds_bucket{le="+Inf",plugin="stub"} 4.0',
    ):
        assert line in text, text
    assert 'kaged_plugin_uptime_seconds{plugin="stub"}' in text


async def test_the_configured_size_of_tables_is_the_limit(home: Path, tmp_path: Path) -> None:
    config = f"{ANY_PORT}[plugins]\nstorage_mb = 1\n[plugins.storage_mb_of]\nlarge = 8\n"
    rows = " UNION ALL ".join(["SELECT 1"] * 8)
    fill = f"INSERT INTO t SELECT hex(randomblob(200000)) FROM ({rows})"
    on = {
        "a.b": [{"ask": ["kaged.storage.exec", {"sql": "CREATE TABLE t (a)", "params": []}]}],
        "c.d": [{"ask": ["kaged.storage.exec", {"sql": fill, "params": []}]}],
    }
    async with http_host(home, config) as host:
        for name in ("small", "large"):
            stub = write_stub(
                tmp_path / name, {"on": on}, name=name, capabilities=["kaged:storage:write"]
            )
            await host.running(stub)
            await host.call(name)
        error = (await host.call("small", "c.d"))["error"]
        assert (error["code"], error["data"]["limit"]) == (-32000, "database_bytes")
        assert await host.call("large", "c.d") == {"rows_affected": 8}
