"""How plugins end: on request, by themselves, by force; and what is left of their calls."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import Guest
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

OK = {"result": "ok"}


def states(guest: Guest) -> list[str]:
    """Return the states that a plugin went through, as the daemon logged them."""
    return [json.loads(line)["state"] for line in guest.logged("plugin.state_changed")]


def processes(guest: Guest) -> list[int]:
    """Return the processes on this machine that run in a plugin's cage, or hold it."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            argv = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        wanted = f"KAGED_PLUGIN_DIR={guest.stored}\0".encode()
        if wanted in environ or str(guest.stored).encode() in argv:
            found.append(int(entry.name))
    return found


def command_pid(guest: Guest) -> int:
    """Return the process id of the plugin's own program."""
    return next(
        pid
        for pid in processes(guest)
        if b"main.py" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2]
        and Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").startswith("python")
    )


@whole("PH-SUP-19", "PH-SUP-31", "PH-SUP-32", "PH-FAIL-01")
def test_a_crash_is_on_record_with_its_last_words_and_the_plugin_comes_back(
    daemon: Daemon, tmp_path: Path
) -> None:
    words = "".join(f"line {n}\n" for n in range(80))
    behaviour = {"on": {"a.b": [{"stderr": words}, {"exit": 7}], "c.d": [OK]}}
    guest = Guest(daemon, tmp_path, behaviour)
    guest.run()
    refused = guest.fail()
    assert (refused["status"], refused["code"]) == (502, "plugin_unavailable")
    (crash,) = exactly(1, lambda: guest.rows("plugin.crashed"))
    assert (crash["exit_code"], crash["signal"]) == (7, None)
    assert crash["last_stderr"] == [f"line {n}" for n in range(30, 80)]
    down = guest.state()
    if down["state"] == "crashed":
        again = guest.fail("c.d")
        assert (again["status"], again["code"]) == (502, "plugin_unavailable")
    guest.await_rows("plugin.initialized", 2)
    guest.await_state("running")
    assert guest.call("c.d") == "ok"
    assert states(guest) == ["spawning", "running", "crashed", "spawning", "running"]
    rows = daemon.audit("plugin.crashed", "plugin.spawned", text=f'"{guest.name}"')
    assert [one["event"] for one in rows] == ["plugin.spawned", "plugin.crashed", "plugin.spawned"]


@whole("PH-AMB-36", "PH-SUP-19", "PH-SUP-21")
def test_an_exit_with_zero_that_nobody_asked_for_is_restarted_too(
    daemon: Daemon, tmp_path: Path
) -> None:
    words = "".join(f"line {n}\n" for n in range(80))
    behaviour = {"on": {"a.b": [{"stderr": words}, {"exit": 0}], "c.d": [OK]}}
    guest = Guest(daemon, tmp_path, behaviour)
    guest.run()
    guest.fail()
    (gone,) = exactly(1, lambda: guest.rows("plugin.exited"))
    assert gone["exit_code"] == 0
    assert gone["last_stderr"] == [f"line {n}" for n in range(30, 80)]
    assert guest.rows("plugin.crashed") == []
    guest.await_rows("plugin.initialized", 2)
    assert guest.await_state("running")["failures"] == 1
    assert guest.call("c.d") == "ok"


@whole("PH-SUP-19")
def test_an_exit_that_was_asked_for_is_on_record_with_the_last_words_too(
    daemon: Daemon, tmp_path: Path
) -> None:
    words = "".join(f"line {n}\n" for n in range(80))
    guest = Guest(daemon, tmp_path, {"on": {"a.b": [{"stderr": words}, OK]}})
    guest.run()
    assert guest.call() == "ok"
    daemon.post(f"/plugins/{guest.name}/disable")
    (gone,) = exactly(1, lambda: guest.rows("plugin.exited"))
    assert gone["exit_code"] == 0
    assert gone["last_stderr"] == [f"line {n}" for n in range(30, 80)]
    assert guest.rows("plugin.crashed") == []


@whole("PH-SUP-40", "PH-FAIL-01")
def test_calls_under_way_fail_at_once_when_the_process_dies(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, {"on": {"a.b": [{"hang": True}]}})
    guest.run()
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(guest.fail) for _ in range(3)]
        wait_for(lambda: len(daemon.audit("plugin.method_called", text=f'"{guest.name}"')) == 3)
        os.kill(command_pid(guest), signal.SIGKILL)
        # The default of 30 seconds is not waited for: they are back before the plugin is.
        errors = [one.result() for one in calls]
        assert len(guest.rows("plugin.spawned")) == 1
    assert {one["code"] for one in errors} == {"plugin_unavailable"}
    assert {one["status"] for one in errors} == {502}
    returned = guest.rows("plugin.method_returned")
    assert [one["success"] for one in returned] == [False] * 3


@whole("PH-FAIL-12", "PH-FAIL-10")
def test_a_plugin_that_never_reads_holds_up_nobody_else(daemon: Daemon, tmp_path: Path) -> None:
    deaf = """
from kit import *
greet()
receive()
time.sleep(600)
"""
    guest = Guest(daemon, tmp_path, deaf)
    other = Guest(daemon, tmp_path, {"on": {"a.b": [OK]}})
    guest.run()
    other.run()
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(guest.fail, text="x" * 900_000) for _ in range(6)]
        wait_for(lambda: len(daemon.audit("plugin.method_called", text=f'"{guest.name}"')) >= 5)
        assert [other.call() for _ in range(5)] == ["ok"] * 5
        assert daemon.get("/status")
        daemon.post(f"/plugins/{guest.name}/disable")
        errors = [one.result() for one in calls]
    assert {one["status"] for one in errors} <= {502, 503}, errors
    assert guest.state()["state"] == "disabled"
    wait_for(lambda: not processes(guest))


@whole("PH-ISO-12", "PH-FAIL-08", "PH-FAIL-10")
def test_several_that_die_at_once_come_back_each_for_itself(daemon: Daemon, tmp_path: Path) -> None:
    behaviour = {"on": {"a.b": [{"hang": True}], "c.d": [OK]}}
    guests = [Guest(daemon, tmp_path, behaviour) for _ in range(4)]
    for guest in guests:
        guest.run()
    *doomed, spared = guests
    for guest in doomed:
        os.kill(command_pid(guest), signal.SIGKILL)
    assert spared.call("c.d") == "ok"
    assert daemon.get("/status")
    for guest in doomed:
        guest.await_rows("plugin.crashed")
    assert spared.call("c.d") == "ok"
    for guest in doomed:
        guest.await_rows("plugin.initialized", 2)
        guest.await_state("running")
        assert guest.call("c.d") == "ok"
    assert len(spared.rows("plugin.spawned")) == 1


@whole("PH-SUP-20", "PH-SUP-25", "PH-SUP-36", "PH-AMB-37")
def test_disabling_asks_the_plugin_to_end_and_leaves_it_disabled(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, {"on": {"a.b": [OK]}})
    guest.run()
    assert processes(guest)
    shown = daemon.post(f"/plugins/{guest.name}/disable")
    assert (shown["state"], shown["pid"]) == ("disabled", None)
    assert processes(guest) == []
    assert states(guest)[-3:] == ["running", "stopped", "disabled"]
    assert exactly(7, guest.events)[-3:] == ["plugin.exited", "plugin.stopped", "plugin.disabled"]
    (row,) = guest.rows("plugin.disabled")
    assert row["reason"] == "operator"
    assert guest.heard("shutdown")
    assert guest.fail()["code"] == "plugin_unavailable"


@whole("PH-SUP-42", "PH-AMB-38", "PH-SUP-25")
def test_a_plugin_that_ignores_shutdown_gets_a_signal_that_it_can_act_on(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, shutdown_timeout_sec=1)
    proof = guest.shared / "proof"
    guest.write(
        {"shutdown": "ignore", "sigterm": f"file:{proof}", "log": str(guest.diary)},
        **guest.manifest,
    )
    guest.run()
    daemon.post(f"/plugins/{guest.name}/disable")
    assert proof.read_text(encoding="utf-8") == "got it"
    assert guest.heard("shutdown"), "asked first"
    (stopped,) = guest.rows("plugin.stopped")
    assert "signal" in stopped
    assert guest.rows("plugin.killed") == []
    default = Guest(daemon, tmp_path, {"shutdown": "ignore"}, shutdown_timeout_sec=0)
    default.run()
    daemon.post(f"/plugins/{default.name}/disable")
    (row,) = default.rows("plugin.stopped")
    assert row["signal"] in {15, "SIGTERM"}


@whole("PH-SUP-24", "PH-SUP-25", "PH-SUP-41", "PH-SUP-42")
def test_a_stubborn_plugin_is_killed_with_everything_it_started(
    daemon: Daemon, tmp_path: Path
) -> None:
    behaviour = {
        "shutdown": "ignore",
        "sigterm": "ignore",
        "on": {"a.b": [{"run": ["/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]}]},
    }
    guest = Guest(daemon, tmp_path, behaviour, shutdown_timeout_sec=1)
    guest.run()
    assert guest.call()["code"] == 0
    assert any(b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes(guest)), (
        "its child is there"
    )
    wrapper = Path(f"/proc/{guest.state()['pid']}")
    assert wrapper.exists()
    daemon.post(f"/plugins/{guest.name}/disable")
    assert processes(guest) == []
    assert not wrapper.exists()
    exactly(1, lambda: guest.rows("plugin.killed"))
    assert guest.rows("plugin.stopped") == []
    (called,) = daemon.audit("plugin.method_returned", text=f'"{guest.name}"')
    (killed,) = daemon.audit("plugin.killed", text=f'"{guest.name}"')
    # One second of its own, then two more after the signal; clocks of processors differ a little.
    assert _seconds(killed) - _seconds(called) >= 2.9


def _seconds(row: dict[str, str]) -> float:
    return datetime.fromisoformat(row["timestamp"]).timestamp()


@whole("PH-SUP-27", "PH-SUP-28", "PH-SUP-29", "PH-SUP-30")
def test_the_states_of_a_life(daemon: Daemon, tmp_path: Path) -> None:
    slow = """
from kit import *
request = receive()
while not os.path.exists(DIARY + ".go"):
    time.sleep(0.01)
answer(request, hello())
serve(lambda message: answer(message, "ok"))
"""
    guest = Guest(daemon, tmp_path, slow)
    guest.install()
    assert (guest.state()["state"], guest.state()["pid"]) == ("disabled", None)
    assert processes(guest) == []
    with ThreadPoolExecutor(1) as pool:
        enabling = pool.submit(lambda: daemon.post(f"/plugins/{guest.name}/enable"))
        spawning = guest.await_state("spawning")
        guest.await_heard("initialize")
        assert guest.state()["pid"] is not None
        assert spawning["state"] == "spawning"
        (guest.shared / "diary.go").touch()
        assert enabling.result()["state"] == "running"
    assert states(guest) == ["spawning", "running"]


@whole("PH-SUP-37", "PH-AMB-37")
def test_what_an_operator_asks_in_any_state_leads_only_where_the_table_says(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, {"on": {"a.b": [{"exit": 1}], "c.d": [OK]}})
    guest.install()
    path = f"/plugins/{guest.name}"
    for word in ("disable", "restart", "enable", "enable", "restart", "disable", "disable"):
        daemon.client.post(f"/api/v1{path}/{word}")
    seen = states(guest)
    assert seen == ["spawning", "running", "stopped", "spawning", "running", "stopped", "disabled"]
    daemon.post(f"{path}/enable")
    guest.fail()
    guest.await_state("crashed")
    daemon.post(f"{path}/disable")
    assert guest.state()["state"] == "disabled"
    exactly(3, lambda: guest.rows("plugin.spawned"), "no restart after it was disabled")
    assert set(states(guest)) <= {
        "disabled",
        "spawning",
        "running",
        "crashed",
        "failed",
        "stopped",
    }
    pairs = set(zip(["disabled", *states(guest)], states(guest), strict=False))
    allowed = {
        ("disabled", "spawning"),
        ("spawning", "running"),
        ("running", "stopped"),
        ("running", "crashed"),
        ("stopped", "spawning"),
        ("stopped", "disabled"),
        ("crashed", "stopped"),
        ("crashed", "disabled"),
        ("crashed", "spawning"),
    }
    assert pairs <= allowed, pairs - allowed


@whole("PH-FAIL-01")
def test_an_agent_sees_that_a_plugin_is_blocked_and_can_use_it_again_later(
    daemon: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    tool = {"name": "look", "description": "Looks.", "parameters_schema": {"type": "object"}}
    dies_once = """
from kit import *
greet()
def on(message):
    if not os.path.exists(DIARY + ".once"):
        open(DIARY + ".once", "w").close()
        os._exit(3)
    answer(message, "here again")
serve(on)
"""
    guest = Guest(daemon, tmp_path, dies_once, tools=[tool])
    full = f"{guest.name}.look"
    guest.run()
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    shown: dict[str, str] = {}
    for word in (f"blocked-{guest.name}", f"later-{guest.name}"):
        model.play(word, call(full), say("seen"))
        daemon.cli("run", f"{word} please", cwd=project.root)
        asked = model.asked(word)[-1]["messages"]
        shown[word] = json.dumps([one for one in asked if one["role"] == "tool"])
        guest.await_rows("plugin.initialized", 2)
        guest.await_state("running")
    blocked, later = shown.values()
    assert "[BLOCKED]" in blocked, blocked
    assert "here again" in later
    assert "[BLOCKED]" not in later
