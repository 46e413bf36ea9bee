"""Rows of the plugin host as an operator meets them: over HTTP, with a real daemon and cages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.host_over_http import HttpHost, http_host, write_project, write_stub
from fakes.running_daemon import ANY_PORT
from kaged.config.locations import Locations
from kaged.events.hub import topic_filter
from kaged.serve.http.connection import PeerConnection
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"env": True}]}}
OBJECT = {"type": "object"}


@pytest.fixture
async def host(home: Path) -> AsyncIterator[HttpHost]:
    async with http_host(home) as made:
        yield made


# -- calls -------------------------------------------------------------------------------------


@requirement("PH-METH-17", "PH-METH-01", "PH-AMB-50", "PH-ERR-03")
async def test_an_http_call_is_a_method_call_and_errors_have_their_status(
    home: Path, tmp_path: Path
) -> None:
    config = ANY_PORT + "[plugins]\nrequest_timeout_seconds = 1\n"
    on = {
        "a.b": [{"echo": True}],
        "bad.params": [{"error": [-32602, "no"]}],
        "no.answer": [{"hang": True}],
        "at.once": [{"exit": 1}],
        "ask.host": [{"ask": ["kaged.nothing", {}]}],
        "ask.own": [{"ask": ["a.b", {}]}],
    }
    methods = [*on, "not.offered"]
    async with http_host(home, config) as host:
        stub = write_stub(
            tmp_path / "s", {"on": on, "answer": {"methods": list(on)}}, methods=methods
        )
        await host.running(stub)
        path = "/plugins/stub/call/a.b"
        got = (await host.get(f"{path}?n=1&text=x%20y"))["result"]
        assert (got["n"], got["text"]) == ("1", "x y")
        posted = (await host.post(path, {"n": 1, "list": [1, None]}))["result"]
        assert (posted["n"], posted["list"]) == (1, [1, None])
        assert (await host.call("stub", "bad.params", expect=400))["code"] == "invalid_params"
        for missing in ("not.offered", "not.declared"):
            found = await host.call("stub", missing, expect=404)
            assert found["code"] == "method_not_found"
        # The first segment says whose a method is: kaged.* is the host's, in both directions.
        await host.call("stub", "kaged.hook.on_session_start", expect=404)
        for asked in ("ask.host", "ask.own"):
            assert (await host.call("stub", asked))["error"]["code"] == -32601
        assert (await host.call("stub", "at.once", expect=502))["code"] == "plugin_unavailable"
        await host.post("/plugins/stub/enable")
        assert (await host.call("stub", "no.answer", expect=502))["code"] == "plugin_timed_out"
        await host.post("/plugins/stub/disable")
        assert (await host.call("stub", expect=502))["code"] == "plugin_unavailable"


@requirement("PH-CTX-03", "PH-AMB-16", "PH-AMB-01")
async def test_the_operator_is_who_the_host_knows(home: Path, tmp_path: Path) -> None:
    config = '[daemon]\nbind = "127.0.0.1:0"\n[auth]\ntrusted_proxies = ["10.0.0.0/8"]\n'
    async with http_host(home, config) as host:
        await host.running(write_stub(tmp_path / "s", ECHO))
        token = (home / "http-token").read_text(encoding="utf-8").strip()

        async def operator(address: str | None) -> Any:
            peer = None if address is None else PeerConnection("tcp", address=address)
            headers = {"X-Kaged-User-Id": "ada"}
            if peer is None:
                answer = await host.client.post(
                    "/api/v1/plugins/stub/call/a.b", json={}, headers=headers
                )
            else:
                headers["Authorization"] = f"Bearer {token}"
                async with host.inside.over(peer) as client:
                    answer = await client.post(
                        "/api/v1/plugins/stub/call/a.b", json={}, headers=headers
                    )
            assert answer.status_code == 200, answer.text
            return answer.json()["result"]["_context"]

        own = (await operator(None))["operator_id"]
        assert own not in {None, "ada"}
        assert (await operator("10.1.2.3"))["operator_id"] == "ada"
        assert (await operator("127.0.0.1"))["operator_id"] == own
        context = await operator(None)
        names = {"operator_id", "project_id", "agent_path", "session_id", "request_id"}
        assert set(context) == names
        rows = await host.events("plugin.method_called")
        assert all({"user_id", "project"}.isdisjoint(row["data"]) for row in rows)
        assert {"operator_id", "project_id"} <= set(rows[0]["data"])
    insecure = '[daemon]\nbind = "127.0.0.1:0"\n[auth]\nmode = "insecure"\n'
    async with http_host(home, insecure) as host:
        await host.post("/plugins/stub/enable")
        async with host.inside.over(PeerConnection("tcp", address="127.0.0.1")) as client:
            answer = await client.post("/api/v1/plugins/stub/call/a.b", json={})
        context = answer.json()["result"]["_context"]
        assert context["operator_id"] is None


@requirement("PH-NOTIF-03")
async def test_notifications_reach_those_who_want_this_plugins(
    host: HttpHost, tmp_path: Path
) -> None:
    on = {"on": {"a.b": [{"notify": ["x.y", {"n": 3}, 1]}, {"result": 1}]}}
    for name in ("one", "other"):
        await host.running(write_stub(tmp_path / name, on, name=name))
    hub = host.inside.daemon.services.hub
    wanted, unwanted = topic_filter(frozenset({"plugin:one"})), topic_filter(frozenset({"audit"}))
    before = hub.latest
    await host.call("one")
    await host.call("other")
    await host.events("plugin.notification")
    seen = [event for event in hub._ring if event.seq > before and event.topic.startswith("plugin")]
    assert [event.topic for event in seen] == ["plugin:one", "plugin:other"]
    assert [wanted(event.topic) for event in seen] == [True, False]
    assert not any(unwanted(event.topic) for event in seen)
    assert json.loads(seen[0].text)["data"] == {"plugin": "one", "params": {"n": 3}}


# -- storage -----------------------------------------------------------------------------------


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


# -- configuration -----------------------------------------------------------------------------


@requirement("PH-CONF-01", "PH-CONF-02", "PH-CONF-11", "PH-CONF-20", "PH-AMB-28")
async def test_both_halves_reach_the_plugin_and_a_missing_variable_stops_one(
    home: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    system = {
        "type": "object",
        "properties": {"token": {"type": "string"}, "machine": {"type": "string"}},
        "required": ["token"],
    }
    project_half = {
        "store": "config:/memory", "budget": 3, "model": "fast", "isolation": "project",
        "tags": ["a"],
    }  # fmt: skip
    schema = {"type": "object", "properties": {name: {} for name in project_half}}
    schema["properties"]["isolation"] = {"type": "string", "enum": ["agent", "project"]}  # type: ignore[index]
    home.mkdir(mode=0o700)
    local = home / "local.toml"
    local.write_text(
        '[plugins."@scope/mem"]\ntoken = "${KAGED_DEBUG}-secret"\nmachine = "/srv/private/place"\n'
        '[plugins.lost]\ntoken = "${NO_SUCH_VARIABLE}"\n',
        encoding="utf-8",
    )
    local.chmod(0o600)
    async with http_host(home) as host:
        for name, package in (("mem", "@scope/mem"), ("lost", None), ("plain", None)):
            more = {} if package is None else {"package": package}
            stub = write_stub(
                tmp_path / name,
                {**ECHO, "log": str(logs / name)},
                name=name,
                capabilities=[f"write:fs:{logs}"],
                **({} if name == "plain" else {"system_config_schema": system}),
                **({"config_schema": schema} if name == "mem" else {}),
                **more,
            )
            await host.install(stub)
        lost = await host.post("/plugins/lost/enable")
        assert lost["state"] == "failed"
        for part in ("local.toml", "token", "NO_SUCH_VARIABLE"):
            assert part in lost["note"], lost["note"]
        for name in ("mem", "plain"):
            assert (await host.post(f"/plugins/{name}/enable"))["state"] == "running"
        root = write_project(
            tmp_path / "boats",
            {"plugins": {"mem": {"package": "@scope/mem", "isolation": "project",
                                 "config": project_half}}},
        )  # fmt: skip
        file = root / ".kaged" / "project.yaml"
        committed = file.read_text(encoding="utf-8")
        await host.load(root)
        await host.settle()
        lines = (logs / "mem").read_text(encoding="utf-8").splitlines()
        updates = [json.loads(line) for line in lines if "config.update" in line]
        config = updates[-1]["params"]["config"]
        assert config == {**project_half, "token": "1-secret", "machine": "/srv/private/place"}
        assert file.read_text(encoding="utf-8") == committed
        everything = json.dumps(await host.events("plugin.*")) + json.dumps(
            await host.get("/plugins")
        )
        assert "1-secret" not in everything
        assert "/srv/private/place" not in everything


# -- manifest at install -----------------------------------------------------------------------

KNOB = {"type": "boolean", "label": "On", "default": True, "binds_to": "config.on"}
FIELD = {"type": "object", "properties": {"on": {"type": "boolean"}}}
SECRET = {"type": "object", "properties": {"key": {"type": "boolean"}}}


FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"version": "1.4"}, "version"),
    ({"version": "latest"}, "version"),
    ({"env": {"N": 1}}, "env"),
    ({"config_schema": {"type": "nonsense"}}, "config_schema"),
    ({"system_config_schema": {"type": "object", "properties": 1}}, "system_config_schema"),
    ({"config_schema": FIELD, "system_config_schema": FIELD}, "on"),
    ({"knobs": {"on": {**KNOB, "type": "dial"}}, "config_schema": FIELD}, "knobs"),
    ({"knobs": {"on": {**KNOB, "binds_to": "on"}}, "config_schema": FIELD}, "binds_to"),
    (
        {"knobs": {"on": {**KNOB, "binds_to": "config.nothing"}}, "config_schema": FIELD},
        "knob_binds_to_unknown_field",
    ),
    (
        {
            "knobs": {"on": {**KNOB, "binds_to": "config.key"}},
            "config_schema": FIELD,
            "system_config_schema": SECRET,
        },
        "knob_binds_to_system_config",
    ),
    ({"tools": [{"name": "Retain", "description": "d", "parameters_schema": OBJECT}]}, "tools"),
    ({"tools": [{"name": "a.b", "description": "d", "parameters_schema": OBJECT}]}, "tools"),
    ({"tools": [{"name": "list-tags", "description": "d", "parameters_schema": OBJECT}]}, "tools"),
    ({"roles": ["compactor"], "hooks": ["post_compact"]}, "pre_compact"),
    ({"roles": [], "hooks": ["post_compact"]}, "roles"),
    ({"kaged_api": 0}, "kaged_api"),
    ({"kaged_api": 2}, "kaged_api"),
    ({"name": "file"}, "file"),
    ({"name": "system"}, "system"),
]


@requirement(
    "PH-MANI-19", "PH-MANI-20", "PH-MANI-22", "PH-MANI-30", "PH-MANI-31", "PH-KNOB-17",
    "PH-CONF-08", "PH-TOOL-02",
)  # fmt: skip
async def test_a_faulty_manifest_is_refused_at_install(host: HttpHost, tmp_path: Path) -> None:
    for number, (manifest, says) in enumerate(FAULTY):
        body = {"path": str(write_stub(tmp_path / f"s{number}", ECHO, **manifest))}
        refused = (await host.post("/plugins/preview", body, expect=422))["error"]
        assert says in json.dumps(refused), (manifest, refused)
        await host.post("/plugins", {**body, "digest": "sha256:00000000"}, expect=422)
    assert await host.get("/plugins") == {"items": []}


@requirement("PH-MANI-32", "PH-AMB-42")
async def test_a_knob_that_does_not_fit_its_field_is_a_warning_until_it_is_turned(
    host: HttpHost, tmp_path: Path
) -> None:
    field = {"type": "object", "properties": {"on": {"type": "string"}}}
    stub = write_stub(tmp_path / "s", ECHO, knobs={"on": KNOB}, config_schema=field)
    shown = await host.post("/plugins/preview", {"path": str(stub)})
    assert any("on" in warning for warning in shown["warnings"]), shown["warnings"]
    await host.running(stub)
    root = write_project(tmp_path / "boats", {"plugins": {"stub": {"package": "stub"}}})
    project_id = (await host.load(root))["id"]
    await host.settle()
    body = {"project_id": project_id, "value": True}
    await host.ask("PUT", "/plugins/stub/knobs/on", body, expect=422)
    deep = {**KNOB, "binds_to": "config.a.b"}
    faulty = write_stub(
        tmp_path / "deep", ECHO, name="deep", knobs={"on": deep}, config_schema=field
    )
    await host.post("/plugins/preview", {"path": str(faulty)}, expect=422)


@requirement("PH-MANI-04", "PH-AMB-43")
async def test_versions_decide_between_refusal_upgrade_and_downgrade(
    host: HttpHost, tmp_path: Path
) -> None:
    await host.running(write_stub(tmp_path / "v142", ECHO, version="1.4.2"))
    again = await host.post("/plugins/preview", {"path": str(tmp_path / "v142")}, expect=409)
    assert again["error"]["code"] == "plugin_already_installed"
    for version, change in (("1.5.0", "upgrade"), ("1.4.0", "downgrade")):
        path = write_stub(tmp_path / version, ECHO, version=version)
        assert (await host.post("/plugins/preview", {"path": str(path)}))["change"] == change
    declared = {"package": "stub", "version": "^2"}
    root = write_project(tmp_path / "boats", {"plugins": {"stub": declared}})
    project_id = (await host.load(root))["id"]
    await host.settle()
    (refused,) = (await host.get("/plugins/stub"))["refused"]
    assert refused == f"{project_id} primary: version 1.4.2 is installed, ^2 is asked for"


# -- supervisor --------------------------------------------------------------------------------


@requirement("PH-SUP-01", "PH-SUP-04", "PH-FAIL-04", "PH-SUP-03")
async def test_at_start_only_the_enabled_run_and_a_broken_one_harms_nobody(
    home: Path, tmp_path: Path
) -> None:
    async with http_host(home) as host:
        for name in ("good", "resting", "invalid"):
            await host.install(write_stub(tmp_path / name, ECHO, name=name))
        kinds = {
            "early": ({}, ["read:fs:/no/such/place"]),  # the cage
            "absent": ({}, []),  # the program
            "quits": ({"greet": "exit"}, []),  # the handshake
            "liar": ({"answer": {"version": "9.9.9"}}, []),  # its answer
        }
        for name, (behaviour, capabilities) in kinds.items():
            more = {"command": ["./no-such-program"]} if name == "absent" else {}
            stub = write_stub(
                tmp_path / name, behaviour, name=name, capabilities=capabilities, **more
            )
            await host.install(stub)
        for name in ("good", "invalid", *kinds):
            await host.post(f"/plugins/{name}/enable")
    (home / "plugins" / "invalid" / "kaged-plugin.yaml").write_text("name: [", encoding="utf-8")
    config = (home / "config.toml").read_text(encoding="utf-8")
    async with http_host(home, config) as host:
        listed = {one["name"]: one for one in (await host.get("/plugins"))["items"]}
        states = {name: one["state"] for name, one in listed.items()}
        assert states == {
            "good": "running",
            "resting": "disabled",
            "invalid": "disabled (invalid manifest)",
            **dict.fromkeys(kinds, "failed"),
        }
        assert listed["resting"]["pid"] is None
        assert (await host.call("good"))["_context"]
        started = await host.events("daemon.started", "plugin.failed", "plugin.version_mismatch",
                                    "plugin.disabled")  # fmt: skip
        told = {row["data"].get("name") for row in started}
        assert {*kinds, "invalid"} <= told


@requirement(
    "PH-SUP-05", "PH-SUP-06", "PH-SUP-07", "PH-SUP-08", "PH-SUP-09", "PH-MANI-12"
)  # fmt: skip
async def test_a_plugin_finds_its_place_in_its_environment(home: Path, tmp_path: Path) -> None:
    config = ANY_PORT + '[logging]\nlevel = "debug"\n'
    async with http_host(home, config) as host:
        env = {"LOG_LEVEL": "loud", "LANG": "de_DE.UTF-8", "KAGED_API_VERSION": "7"}
        await host.running(write_stub(tmp_path / "s", ECHO, env=env))
        seen = (await host.call("stub", "c.d"))["env"]
        store = str(home / "plugins" / "stub")
        assert seen["KAGED_PLUGIN_NAME"] == "stub"
        assert seen["KAGED_PLUGIN_DIR"] == seen["HOME"] == store
        assert seen["KAGED_API_VERSION"] == "1"
        assert seen["KAGED_LOG_LEVEL"] == "debug"
        assert (seen["LOG_LEVEL"], seen["LANG"]) == ("loud", "de_DE.UTF-8")


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
