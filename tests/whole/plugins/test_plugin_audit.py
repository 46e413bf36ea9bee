"""What the audit trail says of a plugin's life, calls and misdeeds: each event, with its fields.

What takes seconds (a silent handshake, a plugin that dies until the host gives up) begins with the
module and is looked at last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import heard

Maker = Callable[..., PluginFolder]
CONFIG = "[plugins]\nrequest_timeout_seconds = 2\n"
ECHO = {"on": {"a.b": [{"echo": True}]}}
LINGERING = {"lingers-0": 0, "lingers-3": 3, "lingers": None, "lingers-8": 8}
CHECKED = {"checked-25": 25, "checked": None, "checked-35": 35}


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose calls of plugins may take two seconds."""
    made = Daemon(module_path / "h", config=CONFIG, local=model.local_toml())
    made.start()
    yield made
    made.close()


Slow = dict[str, tuple[PluginFolder, Future[Any]]]


@pytest.fixture(scope="module", autouse=True)
def slow(daemon: Daemon, module_path: Path) -> Iterator[Slow]:
    """Yield plugins whose events take a while, each with what goes on meanwhile."""
    silent = PluginFolder(daemon, module_path / "silent", {"greet": "silent"}, name="silent")
    dying = PluginFolder(
        daemon,
        module_path / "dying",
        {"on": {"a.b": [{"stderr": "farewell\n"}, {"exit": 7}]}},
        name="dying",
    )
    unwell = PluginFolder(
        daemon, module_path / "unwell", {"ping": "empty"}, name="unwell", health_interval_sec=5
    )
    stubborn = PluginFolder(
        daemon,
        module_path / "stubborn",
        {"shutdown": "ignore", "sigterm": "ignore"},
        name="stubborn",
        shutdown_timeout_sec=0,
    )

    lingering = {
        name: PluginFolder(
            daemon, module_path / name, {"shutdown": "ignore"}, name=name, shutdown_timeout_sec=wait
        )
        for name, wait in LINGERING.items()
    }
    checked = {name: PluginFolder(daemon, module_path / name, name=name) for name in CHECKED}
    ears = {
        name: heard(checked[name], {}, health_interval_sec=interval)
        for name, interval in CHECKED.items()
    }

    def count_pings() -> dict[str, int]:
        wait_for(lambda: ears["checked"].of("ping"))
        return {name: len(ear.of("ping")) for name, ear in ears.items()}

    def linger(one: PluginFolder) -> None:
        daemon.post(f"/plugins/{one.name}/disable")

    def die() -> None:
        while wait_for(lambda: dying.state()["state"] in ("running", "failed")):
            if dying.state()["state"] == "failed":
                break
            dying.fail()

    def stop() -> None:
        stubborn.run()
        daemon.post("/plugins/stubborn/disable")

    with ThreadPoolExecutor(9) as pool:
        first = [*checked.values(), dying, unwell, *lingering.values()]
        assert {one["state"] for one in pool.map(PluginFolder.run, first)} == {"running"}
        yield {
            **{name: (one, pool.submit(linger, one)) for name, one in lingering.items()},
            "checked": (checked["checked"], pool.submit(count_pings)),
            "silent": (silent, pool.submit(silent.run)),
            "dying": (dying, pool.submit(die)),
            "stubborn": (stubborn, pool.submit(stop)),
            "unwell": (unwell, pool.submit(lambda: None)),
        }


def only(plugin: PluginFolder, event: str, count: int = 1) -> dict[str, Any]:
    """Return the data of the one row of an event about a plugin."""
    rows = exactly(count, lambda: plugin.audit(event), event)
    return dict(rows[0]["data"])


@whole("PH-AUD-01", "PH-AUD-02", "PH-AUD-13", "PH-AUD-14", "PH-AMB-37")
def test_a_life_from_enabling_to_disabling_is_told_step_by_step(plugin: Maker) -> None:
    one = plugin(ECHO, capabilities=["net:[]"])
    state = one.run()
    one.daemon.post(f"/plugins/{one.name}/disable")
    spawned = only(one, "plugin.spawned")
    assert (spawned["name"], spawned["version"]) == (one.name, "1.0.0")
    assert (spawned["pid"], spawned["cage_id"]) == (state["pid"], state["cage_id"])
    assert only(one, "plugin.initialized") == {
        "name": one.name,
        "methods_count": 2,
        "capabilities_count": 1,
    }
    assert only(one, "plugin.enabled") == {"name": one.name}
    disabled = only(one, "plugin.disabled")
    assert (disabled["name"], disabled["reason"]) == (one.name, "operator")
    told = [row["event"] for row in one.audit("plugin.*")]
    assert told == [
        "plugin.installed",
        "plugin.enabled",
        "plugin.spawned",
        "plugin.initialized",
        "plugin.exited",
        "plugin.stopped",
        "plugin.disabled",
    ]


@whole("PH-AUD-10", "PH-AUD-31", "PH-AMB-38")
def test_a_plugin_that_obeys_has_exited_and_is_stopped(plugin: Maker) -> None:
    obedient = plugin(ECHO)
    obedient.run()
    obedient.daemon.post(f"/plugins/{obedient.name}/disable")
    exited = only(obedient, "plugin.exited")
    assert (exited["name"], exited["exit_code"]) == (obedient.name, 0)
    assert only(obedient, "plugin.stopped")["name"] == obedient.name
    told = plugin({"shutdown": "ignore"}, shutdown_timeout_sec=0)
    told.run()
    told.daemon.post(f"/plugins/{told.name}/disable")
    assert "TERM" in str(only(told, "plugin.stopped")["signal"]) or (
        only(told, "plugin.stopped")["signal"] == 15
    )
    for one in (obedient, told):
        assert one.audit("plugin.killed", "plugin.crashed") == []


@whole("PH-AUD-03", "PH-AUD-04", "PH-AUD-33", "PH-AMB-01")
def test_a_call_over_http_is_a_pair_with_the_requests_id(plugin: Maker) -> None:
    one = plugin({"on": {"a.b": [{"echo": True}], "c.d": [{"error": [-32000, "no"]}]}})
    one.run()
    got = one.daemon.client.post(f"/api/v1/plugins/{one.name}/call/a.b", json={"x": 1})
    request_id = got.headers["X-Request-Id"]
    called = only(one, "plugin.method_called")
    assert called == {
        "name": one.name,
        "method": "a.b",
        "request_id": request_id,
        "operator_id": "operator",
        "project_id": None,
    }
    returned = only(one, "plugin.method_returned")
    assert returned.pop("duration_ms") >= 0
    assert returned == {
        "name": one.name,
        "method": "a.b",
        "request_id": request_id,
        "success": True,
    }
    for row in one.audit("plugin.method_called", "plugin.method_returned"):
        assert row["request_id"] == request_id
    context = got.json()["result"]["_context"]
    assert set(context) == {
        "operator_id", "project_id", "agent_path", "session_id", "request_id",
    }  # fmt: skip
    one.fail("c.d")
    assert [row["data"]["success"] for row in one.audit("plugin.method_returned")] == [True, False]


@whole("PH-AMB-59")
def test_an_answer_with_neither_result_nor_error_is_nothing(plugin: Maker) -> None:
    one = plugin({"on": {"a.b": [{"raw": '{"jsonrpc": "2.0", "id": $id}'}]}})
    one.run()
    assert one.call() is None
    assert only(one, "plugin.method_returned")["success"] is True
    assert one.audit("plugin.protocol_violation") == []


@whole("PH-AUD-05", "PH-AUD-06")
def test_notifications_are_told_one_by_one_and_a_flood_once(plugin: Maker) -> None:
    one = plugin(
        {"on": {"a.b": [{"notify": ["x.y", {"n": 1}, 1]}, {"result": 1}],
                "c.d": [{"notify": ["x.y", {}, 150]}, {"result": 1}]}},
        notifications=["x.y"],
    )  # fmt: skip
    one.run()
    one.call("a.b")
    told = only(one, "plugin.notification")
    assert (told["name"], told["notification_type"]) == (one.name, "x.y")
    one.call("c.d")
    flood = only(one, "plugin.notification_flood")
    assert flood["name"] == one.name
    assert flood["rate"] > 100


@whole("PH-AUD-07")
def test_a_line_that_is_no_json_is_told_shortened(plugin: Maker) -> None:
    one = plugin({"on": {"a.b": [{"noise": "w" * 300}, {"result": 1}]}})
    one.run()
    one.call("a.b")
    assert only(one, "plugin.stdout_noise") == {"name": one.name, "line": "w" * 200}


@whole("PH-AUD-09")
def test_a_crash_is_told_with_its_last_words(plugin: Maker) -> None:
    words = "".join(f"line {number}\n" for number in range(60))
    one = plugin({"on": {"a.b": [{"stderr": words}, {"exit": 3}]}})
    one.run()
    one.fail()
    crashed = only(one, "plugin.crashed")
    assert (crashed["name"], crashed["exit_code"]) == (one.name, 3)
    assert crashed["signal"] is None
    said = crashed["last_stderr"]
    lines = said.splitlines() if isinstance(said, str) else said
    assert lines == [f"line {number}" for number in range(10, 60)]
    assert one.audit("plugin.exited") == []


@whole("PH-AUD-18", "PH-AMB-63")
def test_a_breach_of_the_protocol_is_told(plugin: Maker) -> None:
    running = plugin({"on": {"a.b": [{"noise": "[1, 2]"}, {"result": 1}]}})
    running.run()
    running.call("a.b")
    told = only(running, "plugin.protocol_violation")
    assert told["name"] == running.name
    assert told["violation_type"]
    assert told["detail"]
    assert running.state()["state"] == "running"
    early = plugin({"before": ["5"]})
    assert early.run()["state"] == "failed"
    only(early, "plugin.protocol_violation")
    assert early.audit("plugin.killed", "plugin.crashed", "plugin.failed") == []


@whole("PH-AUD-19", "PH-AMB-46", "PH-AMB-63")
def test_a_claim_beyond_the_manifest_is_told_alone(plugin: Maker) -> None:
    one = plugin({"answer": {"capabilities_used": ["net:*"]}}, capabilities=["read:fs:/usr/share"])
    assert one.run()["state"] == "failed"
    told = only(one, "plugin.capability_overreach")
    assert told["name"] == one.name
    assert "net:*" in str(told["claimed"])
    assert "read:fs:/usr/share" in str(told["allowed"])
    events = [row["event"] for row in one.audit("plugin.*")]
    assert events[-2:] == ["plugin.spawned", "plugin.capability_overreach"]
    narrower = plugin(
        {"answer": {"capabilities_used": ["read:fs:/usr/share/doc"]}},
        capabilities=["read:fs:/usr/share"],
    )
    assert narrower.run()["state"] == "failed"
    covered = plugin(
        {"answer": {"capabilities_used": ["kaged:storage:read"]}},
        capabilities=["kaged:storage:write"],
    )
    assert covered.run()["state"] == "running"


@whole("PH-AUD-31", "PH-AMB-11", "PH-AMB-12")
@pytest.mark.parametrize(
    ("answer", "event", "reason"),
    [
        ({"name": "somebody"}, "plugin.name_mismatch", "initialize.name_mismatch"),
        ({"version": "9.9.9"}, "plugin.version_mismatch", "initialize.version_mismatch"),
        ({"api_version": 2}, "plugin.api_mismatch", "initialize.api_mismatch"),
        ({"api_version": 0}, "plugin.api_mismatch", "initialize.api_mismatch"),
    ],
)
def test_a_handshake_that_disagrees_is_told_under_its_own_name(
    plugin: Maker, answer: dict[str, Any], event: str, reason: str
) -> None:
    one = plugin({"answer": answer})
    state = one.run()
    assert (state["state"], state["pid"]) == ("failed", None)
    told = only(one, event)
    assert told["name"] == one.name
    assert told["reason"] == reason
    if event == "plugin.api_mismatch":
        assert {1, answer["api_version"]} <= {
            value for value in told.values() if isinstance(value, int)
        }


@whole("PH-AUD-36", "PH-AMB-40")
def test_a_call_that_is_not_answered_still_has_its_return_and_the_plugin_begins_anew(
    plugin: Maker,
) -> None:
    one = plugin({"on": {"a.b": [{"noise": "hm"}]}})
    pid = one.run()["pid"]
    assert one.fail()["status"] == 502
    assert [row["data"]["success"] for row in one.audit("plugin.method_returned")] == [False]
    wait_for(lambda: one.state()["state"] == "running" and one.state()["pid"] != pid)
    calls = {row["data"]["method"] for row in one.audit("plugin.method_called")}
    assert calls == {"a.b"}, "neither ping nor config.update has a pair"


@whole("PH-AUD-32")
def test_every_row_has_a_time_that_others_can_read(daemon: Daemon) -> None:
    rows = daemon.get("/audit?limit=200&event=plugin.*")["items"]
    assert len(rows) > 30
    for row in rows:
        assert datetime.fromisoformat(row["timestamp"]).tzinfo is not None, row


# -- what takes a while ------------------------------------------------------------------------


@whole("PH-AUD-11", "PH-AMB-38")
def test_who_ignores_both_words_and_signals_is_killed(slow: Slow) -> None:
    stubborn, done = slow["stubborn"]
    done.result()
    assert only(stubborn, "plugin.killed")["name"] == "stubborn"
    assert stubborn.state()["state"] == "disabled"


@whole("PH-AUD-08", "PH-AMB-59")
def test_a_failed_health_check_is_told_with_its_count(slow: Slow) -> None:
    unwell, _ = slow["unwell"]
    wait_for(lambda: len(unwell.audit("plugin.health_fail")) >= 2)
    rows = unwell.audit("plugin.health_fail")[:2]
    told = [(row["data"]["name"], row["data"]["consecutive_failures"]) for row in rows]
    assert told == [("unwell", 1), ("unwell", 2)]


@whole("PH-AUD-31", "PH-AMB-11")
def test_a_plugin_that_never_greets_is_told_as_such(slow: Slow) -> None:
    silent, done = slow["silent"]
    assert done.result()["state"] == "failed"
    told = only(silent, "plugin.initialize_timeout")
    assert told["name"] == "silent"
    assert told["reason"].startswith("initialize."), told


@whole("PH-AUD-12", "PH-AUD-14", "PH-AMB-37")
def test_a_plugin_that_keeps_dying_fails_for_good(slow: Slow) -> None:
    dying, done = slow["dying"]
    done.result()
    failed = only(dying, "plugin.failed")
    assert (failed["name"], failed["total_failures"]) == ("dying", 5)
    assert len(dying.audit("plugin.crashed")) == 5
    (row,) = exactly(1, lambda: dying.audit("plugin.disabled"))
    assert row["data"]["reason"] == "failure"
    assert dying.state()["state"] == "failed"


@whole("PH-MANI-23")
def test_who_ignores_a_shutdown_is_signalled_after_the_manifests_seconds_or_five(
    slow: Slow, daemon: Daemon
) -> None:
    for name in LINGERING:
        slow[name][1].result()
    rows = [row["data"] for row in daemon.audit("plugin.stopped")]
    order = [row["name"] for row in rows if row["name"] in LINGERING]
    assert order == list(LINGERING), "what says nothing is between three seconds and eight"


@whole("PH-MANI-24")
def test_health_is_checked_after_the_manifests_seconds_or_thirty(slow: Slow) -> None:
    default, counted = slow["checked"]
    assert counted.result() == {"checked-25": 1, "checked": 1, "checked-35": 0}
    assert default.state()["state"] == "running"
    assert default.audit("plugin.health_fail") == []
