"""Health, hangs and backoff with the real clock and the default settings.

Everything that takes its time is started when the module begins and goes on at once; the tests
look at it in the order in which it comes to its end. No test asserts that something was quick:
times are compared downwards only, between rows of the audit trail.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly
from whole.harness.guests import Guest

DIES = """
from kit import *
greet()
while receive()["method"] != "initialized":
    pass
os._exit(3)
"""
# Dies on a call; then, as long as the file says so, already in the handshake.
SICK = """
from kit import *
request = receive()
if os.path.exists(DIARY + ".sick"):
    os._exit(4)
other = DIARY + ".name"
answer(request, hello(name=open(other).read() if os.path.exists(other) else NAME))
serve(lambda message: os._exit(5))
"""
# Wrong, wrong, right, wrong, wrong, right, …
UNEVEN = """
from kit import *
greet()
pings = 0
while True:
    message = receive()
    if message["method"] == "ping":
        pings += 1
        answer(message, {"status": "ok" if pings % 3 == 0 else "ill"})
    elif message["method"] == "shutdown":
        os._exit(0)
    elif "id" in message:
        answer(message, "alive")
"""
SOME = {"on": {"a.b": [{"hang": True}], "c.d": [{"result": "ok"}]}}


@dataclass
class Going:
    """What was started with the module."""

    guests: dict[str, Guest]
    hanging: Future[dict[str, Any]]
    closed: Future[dict[str, Any]]

    def __getitem__(self, name: str) -> Guest:
        """Return one of the plugins."""
        return self.guests[name]


@pytest.fixture(scope="module", autouse=True)
def going(daemon: Daemon, module_path: Path) -> Iterator[Going]:
    """Start it all."""
    programs: dict[str, tuple[Any, dict[str, Any]]] = {
        "deaf": ({"ping": "silent", "on": {"c.d": [{"result": "ok"}]}}, {"health_interval_sec": 5}),
        "hanging": (SOME, {}),
        "closing": (
            {"on": {"a.b": [{"result": 1}, {"close_stdin": True}], "c.d": [{"result": "ok"}]}},
            {},
        ),
        "usual": (SOME, {}),
        "uneven": (UNEVEN, {"health_interval_sec": 5}),
        "ill": ({"ping": "error"}, {"health_interval_sec": 5}),
        "wordless": ({"ping": "empty", "sigterm": "ignore"}, {"health_interval_sec": 5}),
        "regular": (SOME, {"health_interval_sec": 5}),
        "dying": (DIES, {}),
        "sick": (SICK, {}),
    }
    guests: dict[str, Guest] = {}
    for name, (program, manifest) in programs.items():
        guests[name] = Guest(daemon, module_path, program, name=name, **manifest)
        guests[name].run()
    with ThreadPoolExecutor(2) as pool:
        guests["closing"].call()
        hanging = pool.submit(guests["hanging"].fail)
        closed = pool.submit(lambda: guests["closing"].fail("c.d"))
        yield Going(guests, hanging, closed)


def at(daemon: Daemon, event: str, name: str) -> list[float]:
    """Return when the audit rows of an event about a plugin were written, in seconds."""
    rows = [one for one in daemon.audit(event, text=f'"{name}"') if one["data"]["name"] == name]
    return [datetime.fromisoformat(one["timestamp"]).timestamp() for one in rows]


@whole("PH-AMB-34", "PH-SUP-37")
def test_a_respawn_that_dies_early_goes_on_with_the_series_and_a_mismatch_ends_it(
    daemon: Daemon, going: Going
) -> None:
    guest = going["sick"]
    (guest.shared / "diary.sick").touch()
    guest.fail()
    guest.await_rows("plugin.crashed", 2)
    assert guest.state()["failures"] == 2
    (guest.shared / "diary.sick").unlink()
    (guest.shared / "diary.name").write_text("somebody-else", encoding="utf-8")
    guest.await_state("failed")
    assert guest.rows("plugin.name_mismatch")
    exactly(3, lambda: guest.rows("plugin.spawned"))
    crashed, spawned = at(daemon, "plugin.crashed", "sick"), at(daemon, "plugin.spawned", "sick")
    assert spawned[1] - crashed[0] >= 0.99
    assert spawned[2] - crashed[1] >= 1.99


@whole("PH-SUP-22", "PH-SUP-33", "PH-SUP-21", "PH-AMB-37")
def test_five_failures_with_growing_pauses_end_the_tries(daemon: Daemon, going: Going) -> None:
    guest = going["dying"]
    guest.await_state("failed")
    crashes = exactly(5, lambda: guest.rows("plugin.crashed"))
    assert {one["exit_code"] for one in crashes} == {3}
    assert len(guest.rows("plugin.spawned")) == 5
    crashed, spawned = at(daemon, "plugin.crashed", "dying"), at(daemon, "plugin.spawned", "dying")
    pauses = [later - earlier for earlier, later in zip(crashed, spawned[1:], strict=False)]
    for pause, wanted in zip(pauses, (1, 2, 4, 8), strict=True):
        assert pause >= wanted - 0.01, pauses
    assert guest.state()["failures"] == 5
    (failed,) = guest.rows("plugin.failed")
    assert failed["total_failures"] == 5
    (disabled,) = guest.rows("plugin.disabled")
    assert disabled["reason"] == "failure"
    assert guest.state()["pid"] is None


@whole("PH-SUP-23", "PH-SUP-34")
def test_the_operator_begins_the_series_anew(daemon: Daemon, going: Going) -> None:
    guest = going["dying"]
    shown = daemon.post("/plugins/dying/enable")
    assert shown["failures"] in {0, 1}
    states = [line for line in guest.logged("plugin.state_changed") if '"spawning"' in line]
    assert len(states) == 6
    guest.await_rows("plugin.crashed", 6)
    assert guest.await_state("crashed", "spawning", "running")["failures"] == 1
    daemon.post("/plugins/dying/disable")


@whole("PH-SUP-14", "PH-METH-04", "PH-AMB-15")
def test_a_healthy_plugin_is_pinged_at_its_interval_and_nothing_comes_of_it(going: Going) -> None:
    guest = going["regular"]
    pings = guest.await_heard("ping", 2)
    assert all(isinstance(one["id"], int) for one in pings)
    assert all("_context" not in one.get("params", {}) for one in pings)
    uptime = guest.state()["uptime_s"]
    assert uptime >= 10
    for one, interval in ((guest, 5), (going["usual"], 30)):
        heard = len(one.heard("ping"))
        assert heard <= one.state()["uptime_s"] // interval, one.name
    assert guest.rows("plugin.health_fail") == []
    assert guest.state()["state"] == "running"


@whole("PH-SUP-16", "PH-SUP-18", "PH-FAIL-03", "PH-AMB-38", "PH-AMB-59")
@pytest.mark.parametrize(("name", "forced"), [("ill", False), ("wordless", True)])
def test_three_wrong_answers_to_pings_end_and_restart_the_plugin(
    daemon: Daemon, going: Going, name: str, forced: bool
) -> None:
    guest = going[name]
    guest.await_rows("plugin.crashed")
    fails = guest.rows("plugin.health_fail")[:3]
    assert [one["consecutive_failures"] for one in fails] == [1, 2, 3]
    assert guest.rows("plugin.crashed")[0]["reason"] == "health"
    guest.await_rows("plugin.initialized", 2)
    told = {"plugin.health_fail", "plugin.killed", "plugin.crashed"}
    events = [one for one in guest.events() if one in told]
    killed = ["plugin.killed"] if forced else []
    assert events[: 4 + forced] == ["plugin.health_fail"] * 3 + killed + ["plugin.crashed"]
    if forced:  # it ignored the signal, and had two seconds to act on it
        third, end = at(daemon, "plugin.health_fail", name)[2], at(daemon, "plugin.killed", name)[0]
        assert end - third >= 1.9
    daemon.post(f"/plugins/{name}/disable")


@whole("PH-SUP-15")
def test_one_right_answer_takes_the_count_back(going: Going) -> None:
    guest = going["uneven"]
    fails = guest.await_rows("plugin.health_fail", 4)
    assert [one["consecutive_failures"] for one in fails[:4]] == [1, 2, 1, 2]
    assert guest.state()["state"] == "running"
    assert guest.rows("plugin.crashed") == []
    assert len(guest.rows("plugin.spawned")) == 1
    assert guest.call() == "alive"


@whole("PH-SUP-17", "PH-SUP-18", "PH-FAIL-03", "PH-AMB-38")
def test_a_ping_without_an_answer_in_five_seconds_counts_as_well(
    daemon: Daemon, going: Going
) -> None:
    guest = going["deaf"]
    assert guest.call("c.d") == "ok", "it answers everything else"
    guest.await_rows("plugin.crashed")
    fails = guest.rows("plugin.health_fail")[:3]
    assert [one["consecutive_failures"] for one in fails] == [1, 2, 3]
    (initialized, *_) = at(daemon, "plugin.initialized", "deaf")
    for number, moment in enumerate(at(daemon, "plugin.health_fail", "deaf")[:3], 1):
        assert moment - initialized >= 10 * number - 0.1, "five to wait, five for the answer"
    assert guest.rows("plugin.crashed")[0]["reason"] == "health"
    guest.await_rows("plugin.initialized", 2)
    daemon.post("/plugins/deaf/disable")


@whole("PH-METH-22", "PH-FAIL-02", "PH-ERR-05", "PH-AMB-40")
def test_a_call_without_an_answer_in_thirty_seconds_fails_and_the_plugin_is_restarted(
    daemon: Daemon, going: Going
) -> None:
    guest = going["hanging"]
    error = going.hanging.result()
    assert (error["status"], error["code"]) == (502, "plugin_timed_out")
    assert error["data"]["number"] == -32603
    assert "30" in error["message"]
    (returned,) = guest.rows("plugin.method_returned")
    assert (returned["success"], returned["error_code"]) == (False, -32603)
    assert returned["duration_ms"] >= 29_900
    (crash,) = guest.await_rows("plugin.crashed")
    assert crash["reason"] == "hang"
    guest.await_rows("plugin.initialized", 2)
    guest.await_state("running")
    first, second = guest.rows("plugin.spawned")
    assert first["pid"] != second["pid"]
    assert not Path(f"/proc/{first['pid']}").exists()
    assert guest.call("c.d") == "ok"


@whole("PH-AMB-50", "PH-FAIL-11")
def test_a_plugin_that_closed_its_input_is_a_clean_error_and_a_restart(
    daemon: Daemon, going: Going
) -> None:
    guest = going["closing"]
    error = going.closed.result()
    assert error["status"] == 502
    assert error["code"] in {"plugin_timed_out", "plugin_unavailable"}
    guest.await_rows("plugin.crashed")
    guest.await_rows("plugin.initialized", 2)
    guest.await_state("running")
    assert guest.call("c.d") == "ok"
    assert "Traceback" not in "".join(
        line for line in daemon.log().splitlines() if "plugin.stderr" not in line
    )


@whole("PH-SUP-14")
def test_without_a_word_in_the_manifest_the_first_ping_comes_after_thirty_seconds(
    going: Going,
) -> None:
    guest = going["usual"]
    heard = len(guest.await_heard("ping"))
    assert heard <= guest.state()["uptime_s"] // 30
    assert guest.state()["state"] == "running"
