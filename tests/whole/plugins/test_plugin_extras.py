"""Beyond the document: schemas of methods, hot reload, numbers, pinned consent, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_relay import Relay
from whole.harness.plugin_store import (
    TOOL,
    as_json,
    heard,
    kept,
    manifest_folder,
    preview,
    problems,
)
from whole.harness.plugin_terminal import at_terminal
from whole.harness.project import Project

Maker = Callable[..., PluginFolder]
ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"echo": True}]}}
CONFIG = "[plugins]\nenabled = ['hot']\nstorage_mb = 1\n\n[plugins.storage_mb_of]\nlarge = 8\n"


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with a plugin that its author works on, and little room for tables."""
    made = Daemon(module_path / "h", config=CONFIG, local=model.local_toml())
    hot(made)
    made.start()
    yield made
    made.close()


def hot(daemon: Daemon) -> PluginFolder:
    """Return the plugin that lies in the store as its author put it there."""
    store = daemon.home / "plugins"
    store.mkdir(mode=0o700, exist_ok=True)
    return PluginFolder(daemon, store / "hot", {"on": {"a.b": [{"result": "old"}]}}, name="hot")


@whole("PH-BEY-01")
def test_a_method_with_a_schema_refuses_what_does_not_fit_before_the_plugin_sees_it(
    plugin: Maker,
) -> None:
    one = plugin()
    on = {"a.b": [{"result": {"n": "many"}}], "c.d": [{"echo": True}]}
    schemas = {
        "a.b": {
            "params": {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "required": ["n"],
                "additionalProperties": False,
            },
            "result": {"type": "object", "properties": {"n": {"type": "integer"}}},
        }
    }
    ear = heard(one, {"on": on}, method_schemas=schemas)
    one.run()
    for wrong in ({}, {"n": "one"}, {"n": 1, "m": 2}):
        refused = one.fail("a.b", **wrong)
        assert (refused["status"], refused["code"]) == (400, "invalid_params"), refused
    assert ear.of("a.b") == []
    assert one.call("a.b", n=1) == {"n": "many"}, "another result is passed on"
    warned = [line for line in one.daemon.log().splitlines() if "warning" in line]
    assert any(one.name in line and "a.b" in line for line in warned)
    assert one.call("c.d", anything=[1])["anything"] == [1]


@whole("PH-BEY-02")
def test_a_reload_switches_to_new_files_and_a_broken_one_changes_nothing(
    daemon: Daemon, plugin: Maker
) -> None:
    one = hot(daemon)
    wait_for(lambda: one.state()["state"] == "running")
    first = one.state()["pid"]
    one.write({"greet": "exit", "on": {"a.b": [{"result": "broken"}]}}, name="hot")
    failed = daemon.error("POST", "/plugins/hot/reload")
    assert failed["code"] == "plugin_start_failed"
    assert (one.call(), one.state()["pid"]) == ("old", first)
    (one.root / "kaged-plugin.yaml").write_text("name: [", encoding="utf-8")
    assert daemon.error("POST", "/plugins/hot/reload")["status"] >= 400
    assert (one.call(), one.state()["pid"]) == ("old", first)
    on = {"a.b": [{"result": "new"}], "e.f": [{"result": "more"}]}
    one.write({"on": on}, name="hot", version="2.0.0", methods=["a.b", "e.f"])
    assert "hot is running." in daemon.cli("plugin", "reload", "hot").out
    state = one.state()
    assert (state["state"], state["version"]) == ("running", "2.0.0")
    assert state["pid"] != first
    assert (one.call(), one.call("e.f")) == ("new", "more")
    wait_for(lambda: not Path(f"/proc/{first}").exists())
    assert one.audit("plugin.crashed", "plugin.killed") == []
    assert [row["data"]["reason"] for row in one.audit("plugin.stopped")] == ["reload"]
    installed = plugin(ECHO)
    pid = installed.run()["pid"]
    with (daemon.home / "plugins" / installed.name / "main.py").open("a") as file:
        file.write("# changed\n")
    refused = daemon.error("POST", f"/plugins/{installed.name}/reload")
    assert "changed after the operator agreed" in refused["message"]
    assert (installed.call(x=1)["x"], installed.state()["pid"]) == (1, pid)


@whole("PH-BEY-04")
def test_counters_move_with_the_traffic(daemon: Daemon, plugin: Maker) -> None:
    one = plugin({"on": {"a.b": [{"echo": True}], "c.d": [{"error": [-32005, "busy"]}]}})
    one.run()
    for _ in range(3):
        one.call()
    assert one.fail("c.d")["status"] == 503
    seen = one.state()["metrics"]
    assert (seen["calls"], seen["errors"]) == (4, {"-32005": 1})
    assert sum(seen["latency_ms"].values()) == 4
    assert seen["latency_sum_ms"] >= 0
    assert one.state()["uptime_s"] >= 0
    text = daemon.client.get("/metrics").text
    named = f'plugin="{one.name}"'
    for line in (
        f'kaged_plugin_state{{{named},state="running"}} 1.0',
        f"kaged_plugin_calls_total{{{named}}} 4.0",
        f'kaged_plugin_errors_total{{code="-32005",{named}}} 1.0',
        f"kaged_plugin_restarts_total{{{named}}} 0.0",
        f"kaged_plugin_hook_timeouts_total{{{named}}} 0.0",
        f"kaged_plugin_notifications_dropped_total{{{named}}} 0.0",
        f"kaged_plugin_call_seconds_count{{{named}}} 4.0",
    ):
        assert line in text
    assert f"kaged_plugin_uptime_seconds{{{named}}}" in text
    daemon.post(f"/plugins/{one.name}/restart")
    one.call()
    assert one.state()["metrics"]["calls"] == 5


def test_plugins_have_no_way_to_each_other(daemon: Daemon, tmp_path: Path) -> None:
    one = Relay(daemon, tmp_path, "relay-a")
    other = Relay(daemon, tmp_path, "relay-b")
    for method in ("kaged.events.publish", "kaged.events.subscribe", "relay-b.ask", "relay.ask"):
        error = one.ask(method, topic="x", ask="ping")["error"]
        assert error["code"] in (-32601, -32001), (method, error)
    calls = other.folder.audit("plugin.method_called")
    assert calls == []


@whole("PH-BEY-07")
def test_what_was_agreed_to_is_what_runs(own: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = own()
    daemon.start()
    kinds = ("manifest", "program", "size", "untouched")
    made = {kind: PluginFolder(daemon, tmp_path / kind, ECHO, name=kind) for kind in kinds}
    for one in made.values():
        one.run()
    daemon.stop()
    store = daemon.home / "plugins"
    file = store / "manifest" / "kaged-plugin.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("capabilities: []", "capabilities: ['net:*']"), encoding="utf-8")
    with (store / "program" / "main.py").open("a", encoding="utf-8") as program:
        program.write("# more\n")
    swapped = store / "size" / "behaviour.json"
    swapped.write_text(
        swapped.read_text(encoding="utf-8").replace('"a.b"', '"x.b"'), encoding="utf-8"
    )
    daemon.start()
    wait_for(lambda: made["untouched"].state()["state"] == "running")
    for kind in ("manifest", "program", "size"):
        state = made[kind].state()
        assert state["state"] == "disabled (consent needed)", (kind, state)
        (row,) = made[kind].audit("plugin.disabled")
        assert row["data"]["reason"] == "consent needed"
        assert daemon.error("POST", f"/plugins/{kind}/enable")["status"] >= 400
    shown = daemon.get("/plugins/manifest/renewal")
    assert [one["text"] for one in shown["added"]] == ["net:*"]
    assert shown["widens"] is True
    code, screen = at_terminal(daemon, "plugin", "renew", "manifest", answer="")
    assert code != 0
    assert "net:*" in screen
    assert made["manifest"].state()["state"] == "disabled (consent needed)"
    daemon.error("POST", "/plugins/manifest/renewal", {"digest": "0" * 64})
    daemon.cli("plugin", "renew", "manifest", "--yes")
    assert daemon.post("/plugins/manifest/enable")["state"] == "running"


@whole("PH-BEY-08")
def test_tables_take_no_more_room_than_the_operator_says(daemon: Daemon, tmp_path: Path) -> None:
    rows = " UNION ALL ".join(["SELECT 1"] * 8)
    fill = f"INSERT INTO t SELECT hex(randomblob(200000)) FROM ({rows})"
    small, large = (Relay(daemon, tmp_path, name, "kaged:storage:write") for name in
                    ("small", "large"))  # fmt: skip
    for one in (small, large):
        one.exec("CREATE TABLE t (a)")
    error = small.refused(fill)
    assert (error["code"], error["data"]["limit"]) == (-32000, "database_bytes")
    assert small.query("SELECT count(*) AS n FROM t") == [{"n": 0}]
    assert large.exec(fill) == 8
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    error = large.refused(endless, method="query")
    assert (error["code"], error["data"]["limit"]) == (-32000, "time_s")
    assert large.query("SELECT count(*) AS n FROM t") == [{"n": 8}]


@whole("PH-BEY-09")
def test_a_caller_who_hangs_up_cancels_the_call(
    daemon: Daemon, plugin: Maker, project: Project
) -> None:
    one = plugin()
    tool = f"{one.name}.retain"
    ear = heard(one, {"on": {tool: [{"noise": "hm"}]}}, tools=[TOOL])
    one.run()
    project.describe(plugins={one.name: {"package": one.name}})
    project.reload()
    body = {"agent": "primary", "tool": tool, "params": {"content": "x"}}
    with pytest.raises(httpx.ReadTimeout):
        daemon.client.post(
            f"/api/v1/projects/{project.id}/tools/call", json=body, timeout=httpx.Timeout(1.0)
        )
    (cancel,) = wait_for(lambda: ear.params("kaged.cancel"))
    assert cancel["id"] == ear.of(tool)[0]["id"]
    assert one.state()["state"] == "running"


@whole("PH-BEY-10")
def test_the_sixty_fifth_open_call_fails_at_once(daemon: Daemon, plugin: Maker) -> None:
    one = plugin({"on": {"a.b": [{"noise": "hm"}], "c.d": [{"echo": True}]}})
    one.run()
    with ThreadPoolExecutor(64) as pool:
        held = [pool.submit(one.fail) for _ in range(63)]
        wait_for(lambda: len(one.audit("plugin.method_called")) == 63)
        assert one.call("c.d", x=1)["x"] == 1, "there is room for one more"
        held.append(pool.submit(one.fail))
        wait_for(lambda: len(one.audit("plugin.method_called")) == 65)
        refused = one.fail("c.d")
        assert refused["status"] == 503, refused
        assert not any(each.done() for each in held)
        daemon.post(f"/plugins/{one.name}/restart")
        assert {each.result()["status"] for each in held} == {502}
    assert one.call("c.d", x=2)["x"] == 2


@whole("PH-BEY-12")
def test_a_plugin_is_checked_without_being_installed(daemon: Daemon, tmp_path: Path) -> None:
    before = kept(daemon)
    good = PluginFolder(daemon, tmp_path / "good", ECHO, name="good")
    assert "handshake ok" in daemon.cli("plugin", "check", str(good.root)).out
    # What asks for the network is started with a network gate, as the daemon would.
    online = PluginFolder(
        daemon, tmp_path / "online", ECHO, name="online", capabilities=["net:example.org:443"]
    )
    assert "handshake ok" in daemon.cli("plugin", "check", str(online.root)).out
    # Whoever wants settings that nobody has made yet is no less sound for it.
    schema = {"type": "object", "properties": {"url": {"type": "string"}}}
    waits = PluginFolder(
        daemon,
        tmp_path / "waits",
        {**ECHO, "config": [-32602, "needs a url"]},
        name="waits",
        config_schema=schema,
    )
    done = daemon.cli("plugin", "check", str(waits.root))
    assert "0 error(s)" in done.out + done.err
    assert "handshake ok" in done.out + done.err
    assert "needs a url" in done.out + done.err
    liar = PluginFolder(daemon, tmp_path / "liar", {"answer": {"version": "9.9.9"}}, name="liar")
    done = daemon.cli("plugin", "check", str(liar.root), code=6)
    assert "handshake failed" in done.out + done.err
    assert "9.9.9" in done.out + done.err
    bad = manifest_folder(tmp_path / "bad", "name: bad\nversion: 1\n")
    done = daemon.cli("plugin", "check", "--dry", str(bad), code=6)
    assert "kaged-plugin.yaml:2" in done.out + done.err
    assert daemon.cli("plugin", "check", str(good.root), "--json").json["ok"] is True
    assert kept(daemon) == before


@whole("PH-BEY-14")
def test_addresses_of_the_newer_internet_have_brackets(daemon: Daemon, tmp_path: Path) -> None:
    root = manifest_folder(tmp_path / "six", as_json(capabilities=["net:[::1]:443"]))
    (shown,) = preview(daemon, root)["capabilities"]
    assert shown["text"] == "net:[::1]:443"
    assert "::1" in shown["words"]
    assert "443" in shown["words"]
    for number, wrong in enumerate(("net:[::1]", "net:::1:443", "net:[nonsense]:443")):
        root = manifest_folder(tmp_path / f"wrong{number}", as_json(capabilities=[wrong]))
        assert problems(daemon, root)[0][0] == "capabilities[0]", wrong
    empty = manifest_folder(tmp_path / "none", as_json(capabilities=["net:[]"]))
    (none,) = preview(daemon, empty)["capabilities"]
    assert none["words"] == "use no network"


@whole("PH-AMB-50", "PH-AMB-56")
def test_calls_over_http_pass_params_on_and_errors_have_their_status(
    daemon: Daemon, plugin: Maker, project: Project
) -> None:
    acts: dict[str, Any] = {
        "a.b": [{"echo": True}],
        "c.d": [{"error": [-32601, "nothing"]}],
        "e.f": [{"error": [-32602, "wrong"]}],
        "g.h": [{"exit": 1}],
    }
    one = plugin({"on": acts}, methods=list(acts))
    one.run()
    path = f"/plugins/{one.name}/call"
    got = daemon.get(f"{path}/a.b?n=1&word=x%20y")["result"]
    context = got.pop("_context")
    assert got == {"n": "1", "word": "x y"}
    assert [context[key] for key in ("project_id", "agent_path", "session_id")] == [None] * 3
    body = {"n": 1, "deep": {"list": [1, None]}}
    posted = daemon.post(f"{path}/a.b", body)["result"]
    posted.pop("_context")
    assert posted == body
    session = project.post("/sessions", {})["id"]
    named = daemon.get(f"{path}/a.b", headers={"X-Kaged-Session": session})["result"]["_context"]
    assert (named["project_id"], named["agent_path"], named["session_id"]) == (
        project.id,
        "primary",
        session,
    )
    for method, status in (("c.d", 404), ("e.f", 400), ("g.h", 502), ("no.such", 404)):
        assert one.fail(method)["status"] == status, method
    daemon.post(f"/plugins/{one.name}/disable")
    assert one.fail("a.b")["status"] in (409, 502, 503)


def reachable(one: PluginFolder) -> bool:
    """Return whether it knows its project: a change of these restarts it."""
    path = f"/api/v1/plugins/{one.name}/call/c.d"
    got = one.daemon.client.post(path, json={})
    return got.is_success and "KAGED_PROJECT_ID" in got.json()["result"]["env"]


@whole("PH-AMB-05", "PH-AMB-62")
def test_config_is_a_folder_of_the_plugins_own_and_project_that_of_who_uses_it(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    project.write("docs/page.md", "hello\n")
    project.write("other/secret.md", "hidden\n")

    def make(name: str, act: Any, version: str, *capabilities: str) -> PluginFolder:
        one = PluginFolder(daemon, tmp_path / name, name=name)
        one.write(
            {"on": {"a.b": [act], "c.d": [{"env": True}]}},
            name=name, version=version, capabilities=list(capabilities),
        )  # fmt: skip
        return one

    grant = "write:fs:config:/memory"
    writer = make("keeper", {"env": True}, "1.0.0", grant)
    assert writer.run()["state"] == "running", "no project is needed"
    root = Path(writer.call()["env"]["KAGED_CONFIG_ROOT"])
    place = root / "memory" / "kept"
    writer = make("keeper", {"write": str(place)}, "2.0.0", grant)
    writer.install()
    assert writer.call() == {"ok": True}
    daemon.post("/plugins/keeper/restart")
    assert writer.call() == {"ok": True}
    (stored,) = (daemon.home / "plugin-data").rglob("kept")
    assert stored.read_text(encoding="utf-8") == "written\n" * 2
    thief = make("thief", {"read": str(stored)}, "1.0.0", grant)
    thief.run()
    assert "failed" in thief.call()
    plain = make("plain", {"env": True}, "1.0.0")
    plain.run()
    assert "KAGED_CONFIG_ROOT" not in plain.call()["env"]
    reader = make(
        "reader", {"read": str(project.root / "docs/page.md")}, "1.0.0", "read:fs:project:/docs"
    )
    reader.run()
    assert "failed" in reader.call(), "nobody has activated it"
    assert "KAGED_PROJECT_ROOT" not in reader.call("c.d")["env"]
    project.describe(plugins={"reader": {"package": "reader"}})
    project.reload()
    wait_for(lambda: reachable(reader))
    assert reader.call() == {"text": "hello\n"}
    env = reader.call("c.d")["env"]
    assert env["KAGED_PROJECT_ID"] == project.id
    assert env["KAGED_PROJECT_ROOT"]
    hidden = make(
        "hidden", {"read": str(project.root / "other/secret.md")}, "1.0.0", "read:fs:project:/docs"
    )
    hidden.run()
    project.describe(plugins={name: {"package": name} for name in ("reader", "hidden")})
    project.reload()
    wait_for(lambda: reachable(hidden))
    assert "failed" in hidden.call()
