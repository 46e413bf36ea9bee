"""Plugins when the daemon starts and when it stops: who is started, who holds up whom."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import Guest
from whole.harness.project import Project

OK = {"result": "ok"}
STALLS = """
from kit import *
request = receive()
while os.path.exists(DIARY + ".stall"):
    time.sleep(0.01)
answer(request, hello())
serve(lambda message: answer(message, "ok"))
"""


def processes_below(home: Path) -> list[int]:
    """Return the processes of this machine that run in cages of a daemon's plugins."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        store = str(home / "plugins").encode()
        if b"KAGED_PLUGIN_DIR=" + store in environ:
            found.append(int(entry.name))
    return found


def at(daemon: Daemon, event: str, name: str) -> float:
    """Return when the one audit row of an event about a plugin was written, in seconds."""
    (row,) = (one for one in daemon.audit(event) if one["data"]["name"] == name)
    return datetime.fromisoformat(row["timestamp"]).timestamp()


@whole("PH-SUP-01", "PH-SUP-04", "PH-SUP-39", "PH-FAIL-04")
def test_the_daemon_starts_what_is_enabled_and_waits_for_no_plugin(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    good = Guest(daemon, tmp_path, {"on": {"a.b": [OK]}}, name="good")
    asleep = Guest(daemon, tmp_path, {"on": {"a.b": [OK]}}, name="asleep")
    broken = Guest(daemon, tmp_path, {"on": {"a.b": [OK]}}, name="broken")
    silent = Guest(daemon, tmp_path, STALLS, name="silent")
    spoilt = Guest(daemon, tmp_path, {"on": {"a.b": [OK]}}, name="spoilt")
    for one in (good, broken, silent, spoilt):
        one.run()
    asleep.install()
    config = (daemon.home / "config.toml").read_text(encoding="utf-8")
    assert all(f'"{name}"' in config for name in ("good", "broken", "silent", "spoilt"))
    assert '"asleep"' not in config
    daemon.stop()
    assert processes_below(daemon.home) == []
    # What is missing in the cage's way, what never answers, and a manifest that is no manifest.
    for path in broken.shared.iterdir():
        path.unlink()
    broken.shared.rmdir()
    manifest = spoilt.stored / "kaged-plugin.yaml"
    manifest.chmod(0o644)
    manifest.write_text("name: [this is no manifest\n", encoding="utf-8")
    (silent.shared / "diary.stall").touch()
    daemon.start()
    assert daemon.get("/status"), "it answers"
    good.await_state("running")
    assert good.call() == "ok"
    assert silent.await_state("spawning"), "while another is in its handshake"
    (silent.shared / "diary.stall").unlink()
    broken.await_state("failed")
    assert str(broken.shared) in broken.rows("plugin.failed")[-1]["reason"]
    assert (asleep.state()["state"], asleep.state()["pid"]) == ("disabled", None)
    assert asleep.rows("plugin.spawned") == []
    listed = {one["name"]: one for one in daemon.get("/plugins")["items"]}
    assert set(listed) == {"good", "asleep", "broken", "silent", "spoilt"}
    assert listed["spoilt"]["state"] == "disabled (invalid manifest)"
    assert "disabled (invalid manifest)" in daemon.cli("plugin", "list").out
    assert len(spoilt.rows("plugin.spawned")) == 1
    silent.await_state("running")
    assert exactly(2, lambda: good.rows("plugin.spawned"))


@whole("PH-SUP-02", "PH-SUP-38")
def test_the_steps_of_a_start_come_in_their_order(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    looks = """
from kit import *
request = receive()
write_down(b'{"method": "env", "name": "%s"}\\n' % os.environ["KAGED_PLUGIN_NAME"].encode())
answer(request, hello())
serve(lambda message: answer(message, message["params"]))
"""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}}
    guest = Guest(daemon, tmp_path, looks, config_schema=schema)
    guest.run()
    assert guest.call()["_context"]["request_id"]
    heard = [one["method"] for one in guest.heard()]
    assert heard == ["initialize", "env", "config.update", "initialized", "a.b"]
    assert guest.events()[:4] == [
        "plugin.installed",
        "plugin.enabled",
        "plugin.spawned",
        "plugin.initialized",
    ]
    cage = daemon.audit("cage.started")[-1]
    spawned = daemon.audit("plugin.spawned")[-1]
    initialized = daemon.audit("plugin.initialized")[-1]
    assert cage["data"]["what"] == f"plugin:{guest.name}"
    assert spawned["seq"] < initialized["seq"]
    states = [json.loads(line)["state"] for line in guest.logged("plugin.state_changed")]
    assert states == ["spawning", "running"]
    assert daemon.post(f"/plugins/{guest.name}/disable")["state"] == "disabled"
    # First the manifest is looked at again: one that is spoilt gets no cage and no process.
    manifest = guest.stored / "kaged-plugin.yaml"
    manifest.chmod(0o644)
    manifest.write_text("name: Not A Name\n", encoding="utf-8")
    cages = len(daemon.audit("cage.started"))
    daemon.client.post(f"/api/v1/plugins/{guest.name}/enable")
    daemon.restart()
    wait_for(lambda: "disabled" in json.dumps(daemon.get(f"/plugins/{guest.name}")))
    assert len(daemon.audit("cage.started")) == cages
    assert len(guest.rows("plugin.spawned")) == 1


@whole("PH-SUP-24", "PH-SUP-25", "PH-SUP-26", "PH-AMB-38")
def test_when_the_daemon_stops_each_plugin_gets_its_time_and_none_waits_for_another(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    stubborn = Guest(
        daemon,
        tmp_path,
        {"shutdown": "ignore", "sigterm": "ignore"},
        name="stubborn",
        shutdown_timeout_sec=1,
    )
    deaf = Guest(daemon, tmp_path, {"shutdown": "ignore"}, name="deaf", shutdown_timeout_sec=1)
    obedient = Guest(daemon, tmp_path, {}, name="obedient")
    for one in (stubborn, deaf, obedient):
        one.run()
    assert processes_below(daemon.home)
    assert daemon.stop() == 0
    assert processes_below(daemon.home) == []
    for one in (stubborn, deaf, obedient):
        assert [x["method"] for x in one.heard()][-1] == "shutdown", one.name
        states = [json.loads(line)["state"] for line in one.logged("plugin.state_changed")]
        assert states[-1] == "stopped"
    daemon.start()
    ends = {"plugin.exited", "plugin.stopped", "plugin.killed", "plugin.crashed"}
    found = {one.name: [x for x in one.events() if x in ends] for one in (stubborn, deaf, obedient)}
    assert found == {
        "stubborn": ["plugin.killed"],
        "deaf": ["plugin.stopped"],
        "obedient": ["plugin.exited", "plugin.stopped"],
    }
    assert deaf.rows("plugin.stopped")[0]["signal"] in {15, "SIGTERM"}
    assert obedient.rows("plugin.stopped")[0]["signal"] is None
    assert at(daemon, "plugin.killed", "stubborn") - at(daemon, "plugin.stopped", "obedient") > 1.9
    assert at(daemon, "plugin.killed", "stubborn") - at(daemon, "plugin.stopped", "deaf") > 1.5


@whole("PH-SUP-41", "PH-SUP-35", "PH-FAIL-10")
def test_no_process_outlives_the_daemon_however_it_ends(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    child = ["/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]
    behaviour: dict[str, Any] = {"on": {"a.b": [{"run": child}], "c.d": [{"hang": True}]}}
    guest = Guest(daemon, tmp_path, behaviour, name="parent", shutdown_timeout_sec=0)
    guest.run()
    assert guest.call()["code"] == 0
    assert len(processes_below(daemon.home)) >= 2, "it and its child"
    wrapper = Path(f"/proc/{guest.state()['pid']}")
    assert wrapper.exists()
    daemon.kill()
    wait_for(lambda: not processes_below(daemon.home), "gone with the daemon that was killed")
    wait_for(lambda: not wrapper.exists())
    daemon.start()
    guest.await_state("running")
    assert guest.call()["code"] == 0
    wrapper = Path(f"/proc/{guest.state()['pid']}")
    assert daemon.stop() == 0
    assert processes_below(daemon.home) == []
    assert not wrapper.exists()
    states = [json.loads(line)["state"] for line in guest.logged("plugin.state_changed")]
    assert states[-2:] == ["running", "stopped"]


@whole("PH-FAIL-09")
@pytest.mark.parametrize("address", ["git+http://127.0.0.1:1/nobody/there"])
def test_a_source_that_cannot_be_reached_leaves_the_project_pending(
    own: Callable[..., Daemon], tmp_path: Path, address: str
) -> None:
    daemon = own(config='[plugins]\nallow_sources = ["git+http-loopback"]\n')
    daemon.start()
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": "far-away", "source": address}})
    daemon.load(project)
    (asked,) = wait_for(lambda: daemon.get("/consents")["items"])
    refused = daemon.error("POST", f"/consents/{asked['id']}", {"allowed": True, "digest": None})
    assert refused["code"], refused
    assert project.get("")["state"] == "pending"
    assert daemon.get("/plugins")["items"] == []
    assert not (daemon.home / "plugins" / "far-away").exists()
    (again,) = daemon.get("/consents")["items"]
    assert again["id"] == asked["id"], "the question still stands, to be answered once more"
