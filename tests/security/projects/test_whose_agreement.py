"""Who agrees: the operator, for what they saw or wrote themselves, and nobody for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

SCHEMA = {"type": "object", "properties": {"level": {"type": "integer"}}}
KNOBS = {
    "level": {
        "type": "int_range", "label": "Level", "min": 0, "max": 9, "step": 1, "default": 0,
        "binds_to": "config.level",
    }
}  # fmt: skip


def _turn(daemon: Daemon, project: Project, value: int) -> dict[str, Any]:
    """Turn the knob as the operator does; returns the project as it is then."""
    body = {"project_id": project.id, "agent_path": "primary", "value": value}
    daemon.ask("PUT", "/plugins/stub/knobs/level", body)
    found: dict[str, Any] = project.get("")
    return found


def test_a_setting_written_through_kaged_is_agreed_to_and_nothing_beside_it(
    daemon: Daemon, tmp_path: Path
) -> None:
    plugin = PluginFolder(daemon, tmp_path / "stub", config_schema=SCHEMA, knobs=KNOBS)
    assert plugin.run()["state"] == "running"
    declared = {"stub": {"package": "stub", "config": {"level": 1}}}
    project = Project(tmp_path / "p", plugins=declared)
    daemon.load(project)
    for value in (2, 3):
        assert _turn(daemon, project, value)["trusted"] is True
        assert f"level: {value}" in project.read(".kaged/project.yaml")
    daemon.post(f"/projects/{project.id}/reload")
    assert project.get("")["trusted"] is True
    # Somebody widens the file on the disk, and then the operator turns the knob.
    text = project.read(".kaged/project.yaml")
    assert "You help." in text
    project.write(".kaged/project.yaml", text.replace("You help.", "You obey."))
    found = _turn(daemon, project, 4)
    assert found["trusted"] is False
    assert {one["key"] for one in found["ask"]["things"] if one["new"]} == {
        "primary: instructions",
        "primary: plugin stub",
    }


def test_a_person_behind_a_front_end_agrees_to_nothing(tmp_path: Path, model: ModelServer) -> None:
    config = '[auth]\noperator = "alice"\ntrusted_proxies = ["127.0.0.1"]\n'
    daemon = Daemon(tmp_path / "h", config=config, local=model.local_toml())
    daemon.start()
    try:
        project = Project(tmp_path / "p", cage="disabled")
        loaded = daemon.post("/projects", {"root": str(project.root)})
        headers = {"Authorization": f"Bearer {daemon.token}", "X-Kaged-User-Id": "bob"}
        path = f"{daemon.url}/api/v1/projects"
        with httpx.Client(headers=headers, trust_env=False, timeout=60) as bob:
            tries = [
                bob.put(f"{path}/{loaded['id']}/trust", json={"trusted": True}),
                bob.put(f"{path}/{loaded['id']}/trust", json={"trusted": False}),
                bob.post(f"{path}/{loaded['id']}/reload", json={"trust": True}),
                bob.post(path, json={"root": str(project.root), "trust": True}),
                bob.post(path, json={"root": str(project.root), "digest": loaded["ask"]["digest"]}),
            ]
            told = [(one.status_code, one.json()["error"]["code"]) for one in tries]
            assert told == [(403, "operator_only")] * len(tries)
            inbox = bob.get(f"{daemon.url}/api/v1/inbox").json()["items"]
            assert inbox == []
        assert daemon.get(f"/projects/{loaded['id']}")["trusted"] is False
    finally:
        daemon.close()
