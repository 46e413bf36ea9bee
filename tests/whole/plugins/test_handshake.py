"""The beginning of a plugin's life: what the host says, and each answer that ends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import STORAGE, Guest
from whole.harness.project import Project

ended: list[Guest] = []
ALIVE = {"on": {"a.b": [{"result": "ok"}], "c.d": [{"result": "ok"}]}}


@pytest.fixture(scope="module", autouse=True)
def silent(daemon: Daemon, module_path: Path) -> Iterator[tuple[Guest, Future[dict[str, Any]]]]:
    """Start a plugin that never answers initialize, as the module's first; it takes its time."""
    guest = Guest(daemon, module_path, {"greet": "silent"}, name="silent")
    guest.install()
    with ThreadPoolExecutor(1) as pool:
        yield guest, pool.submit(lambda: daemon.post("/plugins/silent/enable"))


def refuse_to_run(event: str, *guests: Guest) -> list[dict[str, Any]]:
    """Start plugins that must not come up, and see that each left nothing behind but its event."""
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda one: one.run(), guests))
    for guest, state in zip(guests, states, strict=True):
        assert state["state"] == "failed", (guest.manifest, state)
        assert state["pid"] is None
        pid = guest.rows("plugin.spawned")[0]["pid"]
        wait_for(lambda gone=pid: not Path(f"/proc/{gone}").exists(), "the process is gone")
        assert guest.heard("initialized") == []
        refused = guest.fail()
        assert (refused["status"], refused["code"]) == (502, "plugin_unavailable")
    wanted = ["plugin.installed", "plugin.enabled", "plugin.spawned", event]
    exactly(4, guests[-1].events)
    for guest in guests:
        assert guest.events() == wanted, guest.manifest
    ended.extend(guests)
    return [guest.rows(event)[0] for guest in guests]


@whole("PH-HAND-01", "PH-HAND-03", "PH-HAND-04", "PH-HAND-05")
def test_initialize_comes_first_and_says_who_speaks_to_whom(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, ALIVE)
    guest.run()
    first = guest.heard()[0]
    assert (first["method"], first["id"]) == ("initialize", 1)
    params = first["params"]
    assert set(params) == {
        "daemon_version",
        "api_version",
        "plugin_name",
        "storage_available",
        "projects",
    }
    assert re.fullmatch(
        r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", params["daemon_version"]
    )
    assert params["daemon_version"] == daemon.get("/status")["version"]
    assert params["api_version"] == 1
    assert type(params["api_version"]) is int
    assert params["plugin_name"] == guest.name


@whole("PH-HAND-06")
@pytest.mark.parametrize(
    ("capabilities", "available"),
    [([], False), (STORAGE, True), (STORAGE[:1], True), (STORAGE[1:], True)],
)
def test_storage_is_told_to_those_who_may_use_it(
    daemon: Daemon, tmp_path: Path, capabilities: list[str], available: bool
) -> None:
    guest = Guest(daemon, tmp_path, ALIVE, capabilities=capabilities)
    guest.run()
    assert guest.heard()[0]["params"]["storage_available"] is available


@whole("PH-HAND-07", "PH-AMB-17")
def test_the_projects_that_use_it_are_told_at_the_start(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, ALIVE)
    guest.run()
    assert guest.heard()[0]["params"]["projects"] == []
    projects = [Project(tmp_path / where / "same") for where in ("one", "two")]
    for project in projects:
        project.describe(plugins={"it": {"package": guest.name}})
        daemon.load(project)
    told = guest.await_heard("projects.activated", 2)
    ids = [one["params"]["project"] for one in told]
    assert ids == [one.id for one in projects]
    assert len(set(ids)) == 2, "equal folder names, different projects"
    daemon.post(f"/plugins/{guest.name}/restart")
    assert guest.await_heard("initialize", 2)[1]["params"]["projects"] == sorted(ids)


WRONG: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "PH-HAND-08",
        {"name": "somebody-else"},
        "plugin.name_mismatch",
        {"reason": "initialize.name_mismatch"},
    ),
    (
        "PH-HAND-09",
        {"version": "9.9.9"},
        "plugin.version_mismatch",
        {"reason": "initialize.version_mismatch"},
    ),
    (
        "PH-HAND-10",
        {"api_version": 99},
        "plugin.api_mismatch",
        {"reason": "initialize.api_mismatch", "host_api_version": 1, "plugin_api_version": 99},
    ),
    (
        "PH-HAND-14",
        {"capabilities_used": ["net:example.org:443"]},
        "plugin.capability_overreach",
        {"reason": "initialize.capability_overreach", "claimed": ["net:example.org:443"]},
    ),
    (
        "PH-AMB-46",
        {"capabilities_used": ["read:fs:/usr/share/doc"]},
        "plugin.capability_overreach",
        {"allowed": ["read:fs:/usr/share"]},
    ),
    ("PH-AMB-12", {"api_version": 0}, "plugin.api_mismatch", {"plugin_api_version": 0}),
]


@pytest.mark.parametrize(
    ("answer", "event", "data"),
    [pytest.param(*rest, marks=whole(row)) for row, *rest in WRONG],
)
@whole("PH-HAND-22", "PH-AMB-11", "PH-AMB-63")
def test_an_answer_that_contradicts_the_manifest_ends_the_plugin_for_good(
    daemon: Daemon, tmp_path: Path, answer: dict[str, Any], event: str, data: dict[str, Any]
) -> None:
    guest = Guest(daemon, tmp_path, {"answer": answer}, capabilities=["read:fs:/usr/share"])
    (found,) = refuse_to_run(event, guest)
    for key, value in data.items():
        if key == "allowed":
            assert set(value) <= set(found[key])
        else:
            assert found[key] == value
    if event == "plugin.api_mismatch":
        said = f"{guest.state()['note']} {' '.join(guest.logged('plugin.'))}"
        assert re.search(r"\b1\b", said)
        assert str(answer["api_version"]) in said


@whole("PH-AMB-12")
@pytest.mark.parametrize(("api", "fine"), [(1, True), (0, False), (2, False), (-1, False)])
def test_the_api_of_a_manifest_is_at_least_one_and_not_newer_than_the_hosts(
    daemon: Daemon, tmp_path: Path, api: int, fine: bool
) -> None:
    guest = Guest(daemon, tmp_path, kaged_api=api)
    got = daemon.client.post("/api/v1/plugins/preview", json={"path": str(guest.root)})
    assert got.is_success is fine, got.text
    assert fine or "kaged_api" in got.text


MALFORMED: list[dict[str, Any]] = [
    {"greet": 'raw:{"jsonrpc":"2.0","id":$id,"result":"text"}'},
    {"greet": 'raw:{"jsonrpc":"2.0","id":$id,"result":null}'},
    {"greet": 'raw:{"jsonrpc":"2.0","id":$id,"result":[]}'},
    {"greet": 'raw:{"jsonrpc":"2.0","id":$id}'},
    {"greet": "raw:5"},
    {"greet": "raw:[]"},
    {"greet": 'raw:{"id":$id,"result":{}}'},
    {"answer": {"name": None}},
    {"answer": {"name": 7}},
    {"answer": {"version": None}},
    {"answer": {"version": 1}},
    {"answer": {"api_version": None}},
    {"answer": {"api_version": "1"}},
    {"answer": {"api_version": True}},
    {"answer": {"api_version": 1.5}},
    {"answer": {"methods": "a.b"}},
    {"answer": {"methods": [1]}},
    {"answer": {"notifications": {"x.y": True}}},
    {"answer": {"capabilities_used": "net:[]"}},
    # Fit for a line of 4 MiB, and far beyond what any manifest could have.
    {"answer": {"methods": [f"extra.method{number}" for number in range(20_000)]}},
    {"answer": {"notifications": [f"extra.kind{number}" for number in range(20_000)]}},
    {"answer": {"capabilities_used": ["net:[]"] * 20_000}},
    {"answer": {"name": "n" * 1_000_000}},
    {"answer": {"methods": ["m" * 1_000_000]}},
]


@whole("PH-HAND-16", "PH-AMB-60", "PH-AMB-32", "PH-AMB-59")
def test_a_malformed_answer_to_initialize_ends_the_plugin(daemon: Daemon, tmp_path: Path) -> None:
    guests = [Guest(daemon, tmp_path, behaviour) for behaviour in MALFORMED]
    for found in refuse_to_run("plugin.protocol_violation", *guests):
        assert found["violation_type"] == "initialize.malformed"
        assert found["detail"]


@whole("PH-HAND-11")
def test_many_methods_that_the_manifest_does_not_have_are_told_in_a_few_lines(
    daemon: Daemon, tmp_path: Path
) -> None:
    extra = [f"extra.method{number}" for number in range(900)]
    guest = Guest(daemon, tmp_path, {**ALIVE, "answer": {"methods": ["a.b", "c.d", *extra]}})
    assert guest.run()["state"] == "running"
    said = [line for line in daemon.log().splitlines() if f'"{guest.name}"' in line]
    warned = [line for line in said if "plugin.handshake_warned" in line]
    assert len(warned) == 21
    assert "and 880 further differences" in warned[-1]
    assert guest.call() == "ok"
    assert guest.fail("extra.method1")["code"] == "method_not_found"


@whole("PH-HAND-17", "PH-AMB-63")
def test_an_error_as_answer_to_initialize_is_a_failed_start(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, {"greet": "error"})
    (found,) = refuse_to_run("plugin.failed", guest)
    assert found["step"] == "initialize"
    assert "not today" in found["reason"]


@whole("PH-AMB-34", "PH-SUP-03", "PH-AMB-63")
def test_an_exit_during_the_first_handshake_is_not_tried_again(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, {"greet": "exit"})
    (found,) = refuse_to_run("plugin.failed", guest)
    assert found["step"] == "initialize"
    assert "no reason to live" in found["reason"]


@whole("PH-HAND-02", "PH-HAND-23")
def test_a_word_ahead_of_the_answer_to_initialize_ends_the_plugin(
    daemon: Daemon, tmp_path: Path
) -> None:
    lines = [
        '{"jsonrpc":"2.0","method":"x.y","params":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"kaged.storage.schema","params":{}}',
        '{"jsonrpc":"2.0","id":77,"result":{}}',
    ]
    at_the_start = [{"before": [line]} for line in lines]
    after_reading = [{"greet": f"raw:{line}"} for line in lines]
    guests = [
        Guest(daemon, tmp_path, early, capabilities=STORAGE)
        for early in (*at_the_start, *after_reading)
    ]
    for found in refuse_to_run("plugin.protocol_violation", *guests):
        assert found["violation_type"] == "message_before_initialize"


@whole("PH-AMB-32", "PH-WIRE-12")
def test_noise_ahead_of_a_good_answer_does_no_harm(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, {**ALIVE, "before": ["starting up…", "50 %"]})
    assert guest.run()["state"] == "running"
    assert [one["line"] for one in guest.rows("plugin.stdout_noise")] == ["starting up…", "50 %"]
    assert guest.call() == "ok"


@whole("PH-HAND-23", "PH-ERR-08")
def test_between_its_answer_and_initialized_a_plugin_is_told_to_wait(
    daemon: Daemon, tmp_path: Path
) -> None:
    hasty = """
from kit import *
request = receive()
raw(b"".join(json.dumps(one).encode() + b"\\n" for one in (
    {"jsonrpc": "2.0", "id": request["id"], "result": hello()},
    {"jsonrpc": "2.0", "id": 1, "method": "kaged.storage.schema", "params": {}},
    {"jsonrpc": "2.0", "method": "x.y", "params": {}},
)))
refused, update = sorted((receive(), receive()), key=lambda one: "method" in one)
answer(update, {})
def on(message):
    answer(message, [update, refused, ask(2, "kaged.storage.schema", {})])
serve(on)
"""
    guest = Guest(
        daemon,
        tmp_path,
        hasty,
        capabilities=STORAGE,
        config_schema={"type": "object", "properties": {"a": {"type": "integer", "default": 1}}},
    )
    assert guest.run()["state"] == "running"
    update, refused, later = guest.call()
    assert update["method"] == "config.update"
    assert refused["error"]["code"] == -32002
    assert later["result"] == {"tables": []}
    assert guest.rows("plugin.notification") == []
    assert len(guest.logged("plugin.notification_dropped")) == 1


@whole("PH-HAND-11", "PH-METH-14", "PH-METH-21")
def test_a_method_that_the_manifest_lacks_is_ignored_with_a_warning(
    daemon: Daemon, tmp_path: Path
) -> None:
    behaviour = {**ALIVE, "answer": {"methods": ["a.b", "c.d", "extra.method"]}}
    guest = Guest(daemon, tmp_path, behaviour)
    assert guest.run()["state"] == "running"
    (warning,) = guest.logged("plugin.handshake_warned")
    assert "extra.method" in warning
    assert '"warning"' in warning
    refused = guest.fail("extra.method")
    assert (refused["status"], refused["data"]["number"]) == (404, -32601)
    assert guest.call() == "ok"
    assert guest.heard("extra.method") == []
    assert guest.state()["methods"] == ["a.b", "c.d"]


@whole("PH-HAND-12", "PH-METH-14")
def test_a_method_that_the_plugin_does_not_offer_cannot_be_called(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, {**ALIVE, "answer": {"methods": ["a.b"]}})
    assert guest.run()["state"] == "running"
    (warning,) = guest.logged("plugin.handshake_warned")
    assert "c.d" in warning
    refused = guest.fail("c.d")
    assert (refused["status"], refused["data"]["number"]) == (404, -32601)
    assert guest.call() == "ok"
    assert guest.heard("c.d") == []


@whole("PH-HAND-13")
@pytest.mark.parametrize("kinds", [[], ["x.y"], ["catalog.updated", "a.b.c"]])
def test_the_notifications_that_a_plugin_names_are_in_its_status(
    daemon: Daemon, tmp_path: Path, kinds: list[str]
) -> None:
    guest = Guest(daemon, tmp_path, {"answer": {"notifications": kinds}})
    assert guest.run()["state"] == "running"
    assert guest.state()["notifications"] == kinds


@whole("PH-AMB-60")
def test_lists_that_are_left_out_are_empty_lists(daemon: Daemon, tmp_path: Path) -> None:
    absent = {"methods": None, "notifications": None, "capabilities_used": None}
    schema = {"type": "object"}
    tools = [{"name": "look", "description": "Looks.", "parameters_schema": schema}]
    guest = Guest(daemon, tmp_path, {"answer": absent}, tools=tools)
    state = guest.run()
    assert state["state"] == "running"
    assert (state["methods"], state["notifications"]) == ([], [])
    warnings = " ".join(guest.logged("plugin.handshake_warned"))
    assert "a.b" in warnings
    assert "c.d" in warnings
    assert guest.fail()["data"]["number"] == -32601


@whole("PH-HAND-14", "PH-AMB-46", "PH-AMB-02")
@pytest.mark.parametrize(
    ("declared", "claimed"),
    [
        (["kaged:storage:write"], ["kaged:storage:read"]),
        (["kaged:storage:write"], []),
        (["read:fs:/usr/share", "net: []"], ["read:fs:/usr/share"]),
        (["net:[]"], ["net: []"]),
        ([{"net": []}], ["net:[]"]),
    ],
)
def test_claiming_what_is_declared_or_less_is_fine(
    daemon: Daemon, tmp_path: Path, declared: list[Any], claimed: list[Any]
) -> None:
    behaviour = {**ALIVE, "answer": {"capabilities_used": claimed}}
    guest = Guest(daemon, tmp_path, behaviour, capabilities=declared)
    assert guest.run()["state"] == "running", guest.state()["note"]


@whole("PH-HAND-18", "PH-HAND-22", "PH-SUP-30")
def test_initialized_is_a_notification_with_nothing_in_it(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, ALIVE)
    guest.run()
    assert guest.call() == "ok"
    lines = guest.heard_bytes().splitlines()
    assert json.loads(lines[1]) == {"jsonrpc": "2.0", "method": "initialized", "params": {}}
    assert guest.rows("plugin.initialized") == [
        {"name": guest.name, "methods_count": 2, "capabilities_count": 1}
    ]


@whole("PH-HAND-19")
def test_no_call_comes_before_initialized(daemon: Daemon, tmp_path: Path) -> None:
    slow = """
from kit import *
request = receive()
while not os.path.exists(DIARY + ".go"):
    time.sleep(0.01)
answer(request, hello())
serve(lambda message: answer(message, "now"))
"""
    guest = Guest(daemon, tmp_path, slow)
    guest.install()
    with ThreadPoolExecutor(1) as pool:
        enabling = pool.submit(lambda: daemon.post(f"/plugins/{guest.name}/enable"))
        guest.await_heard("initialize")
        assert guest.state()["state"] == "spawning"
        refused = guest.fail()
        assert (refused["status"], refused["code"]) == (502, "plugin_unavailable")
        assert not enabling.done(), "refused at once, not after the handshake"
        (guest.shared / "diary.go").touch()
        assert enabling.result()["state"] == "running"
    assert guest.call() == "now"
    assert [one["method"] for one in guest.heard()] == ["initialize", "initialized", "a.b"]


CONFIG = {"type": "object", "properties": {"a": {"type": "integer", "default": 5}}}


@whole("PH-HAND-21", "PH-AMB-61", "PH-AMB-14", "PH-AMB-15")
def test_a_plugin_with_settings_gets_them_before_initialized(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, ALIVE, config_schema=CONFIG)
    guest.run()
    assert guest.call() == "ok"
    heard = guest.heard()
    assert [one["method"] for one in heard] == ["initialize", "config.update", "initialized", "a.b"]
    assert heard[1]["params"] == {"config": {"a": 5}}
    assert "id" in heard[1]
    assert "_context" in heard[3]["params"]


@whole("PH-AMB-61")
def test_required_settings_of_a_project_are_not_missed_before_there_is_one(
    daemon: Daemon, tmp_path: Path
) -> None:
    schema = {**CONFIG, "properties": {"key": {"type": "string"}}, "required": ["key"]}
    guest = Guest(daemon, tmp_path, ALIVE, config_schema=schema)
    assert guest.run()["state"] == "running"
    assert [one["params"] for one in guest.heard("config.update")] == [{"config": {}}]
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name, "config": {"key": "mine"}}})
    daemon.load(project)
    (told,) = guest.await_heard("projects.activated")
    assert told["params"] == {"project": project.id, "config": {"key": "mine"}}
    updates = [one["params"] for one in guest.await_heard("config.update", 2)]
    assert updates[1:] == [{"config": {"key": "mine"}}]
    project.reload()
    guest.await_heard("projects.activated", 2)
    exactly(2, lambda: guest.heard("config.update"), "the same settings are not sent again")


@pytest.mark.parametrize(
    ("config", "state", "updates"),
    [
        ("ok", "running", 1),
        ("early", "running", 2),
        ([-32601, "no such method"], "running", 1),
        ([-32004, "not this"], "failed", 1),
        ([-32603, "broken"], "failed", 1),
        ("late", "running", 1),
    ],
    ids=["ok", "-32002", "-32601", "-32004", "-32603", "only after initialized"],
)
@whole("PH-AMB-13")
def test_how_a_plugin_answers_its_first_settings_decides_whether_it_runs(
    daemon: Daemon, tmp_path: Path, config: Any, state: str, updates: int
) -> None:
    guest = Guest(daemon, tmp_path, {**ALIVE, "config": config}, config_schema=CONFIG)
    assert guest.run()["state"] == state, guest.state()["note"]
    assert len(guest.heard("config.update")) == updates
    if state == "running":
        assert guest.call() == "ok"
        methods = [one["method"] for one in guest.heard()]
        assert methods[:3] == ["initialize", "config.update", "initialized"]
        assert guest.state()["state"] == "running"
    else:
        (failed,) = guest.rows("plugin.failed")
        assert failed["step"] == "config"
        assert guest.heard("initialized") == []


@whole("PH-HAND-15", "PH-AMB-11", "PH-AMB-63")
def test_a_plugin_that_does_not_answer_initialize_in_ten_seconds_is_killed(
    silent: tuple[Guest, Future[dict[str, Any]]],
) -> None:
    # The last test of the module: most of the ten seconds have passed by now.
    guest, enabling = silent
    assert enabling.result()["state"] == "failed"
    found = exactly(4, guest.events)
    assert found[2:] == ["plugin.spawned", "plugin.initialize_timeout"]
    (row,) = guest.rows("plugin.initialize_timeout")
    assert (row["reason"], row["timeout_sec"]) == ("initialize.timeout", 10)
    spawned, timed_out = (
        guest.daemon.audit(event, text='"silent"')[0]["timestamp"]
        for event in ("plugin.spawned", "plugin.initialize_timeout")
    )
    assert _seconds(timed_out) - _seconds(spawned) >= 9.5
    pid = guest.rows("plugin.spawned")[0]["pid"]
    assert not Path(f"/proc/{pid}").exists()


@whole("PH-FAIL-05", "PH-AMB-34")
def test_none_of_those_that_failed_at_their_first_start_was_tried_again(daemon: Daemon) -> None:
    # Behind the ten seconds of the test before: the first delays of a series would be over.
    for guest in ended:
        assert guest.state()["state"] == "failed"
        assert len(guest.rows("plugin.spawned")) == 1, guest.events()
    assert daemon.get("/plugins/silent")["state"] == "failed"


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
