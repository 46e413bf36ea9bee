"""A changed project file asks again for what is wider, and for nothing that is narrower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project

ON, OFF = {"enabled": True}, {"enabled": False}
CAGE: dict[str, Any] = {
    "fs": [{"mode": "rw", "path": "src"}, {"mode": "ro", "path": "src/keys"}],
    "net": {"allow": ["a.example:443", "b.example:*"]},
    "capabilities": ["shell"],
    "env": {"NAME": "value"},
    "limits": {"pids": 20},
}
PLUGIN = {"package": "plug", "version": "^1.0", "hooks": ["pre_compact"], "config": {"level": 1}}
CHILD = {"model": "default", "system_prompt": "You read."}
JOB = {"description": "Do it.", "invokable_by": ["operator", "guest"], "timeout_seconds": 60}
SERVER = {"lang": "python", "command": ["server", "--stdio"]}
AGREED: dict[str, Any] = {
    "system_prompt": "You help.",
    "cage": CAGE,
    "tools": {"file.*": ON, "shell.*": ON, "search.*": ON},
    "plugins": {"plug": PLUGIN},
    "subagents": {"child": CHILD},
    "top": {"workflows": {"job": JOB}, "lsp": {"servers": [SERVER]}},
}


def _cage(**changed: Any) -> dict[str, Any]:
    return {"cage": {**CAGE, **changed}}


def _plugin(**changed: Any) -> dict[str, Any]:
    return {"plugins": {"plug": {**PLUGIN, **changed}}}


def _top(**changed: Any) -> dict[str, Any]:
    return {"top": {**AGREED["top"], **changed}}


WIDER: dict[str, dict[str, Any]] = {
    "another model": {"model": "other"},
    "no cage": {"cage": "disabled"},
    "another path": _cage(fs=[*CAGE["fs"], {"mode": "ro", "path": "docs"}]),
    "a wider path": _cage(fs=[{"mode": "rw", "path": "."}, {"mode": "ro", "path": "src/keys"}]),
    "what was held back": _cage(fs=[{"mode": "rw", "path": "src"}]),
    "a pattern": _cage(fs=[*CAGE["fs"], {"mode": "rw", "path": "*.txt"}]),
    "another host": _cage(net={"allow": ["a.example:443", "c.example:443"]}),
    "another port": _cage(net={"allow": ["a.example:80"]}),
    "every host": _cage(net={"allow": ["*"]}),
    "another grant": _cage(capabilities=["shell", "services"]),
    "another variable": _cage(env={"NAME": "value", "LD_PRELOAD": "/x"}),
    "another value": _cage(env={"NAME": "other"}),
    "a higher limit": _cage(limits={"pids": 21}),
    "no limit": _cage(limits={}),
    "the relaxed filter": _cage(seccomp="relaxed"),
    "kept scratch space": _cage(state="persistent"),
    "another tool": {"tools": {**AGREED["tools"], "edit.*": ON}},
    "all tools": {"tools": {"*": ON}},
    "other instructions": {"system_prompt": "You help!"},
    "other instructions below": {"subagents": {"child": {**CHILD, "system_prompt": "You."}}},
    "another description": {"subagents": {"child": {**CHILD, "description": "Obey."}}},
    "another agent": {"subagents": {"child": CHILD, "second": CHILD}},
    "an agent without a cage": {"subagents": {"child": {**CHILD, "cage": "disabled"}}},
    "another plugin": {"plugins": {"plug": PLUGIN, "other": {"package": "other"}}},
    "another version": _plugin(version="^2.0"),
    "another source": _plugin(source="./plug"),
    "all hooks": _plugin(hooks=None),
    "another setting": _plugin(config={"level": 2}),
    "one setting fewer": _plugin(config={}),
    "another job": _top(workflows={"job": JOB, "more": JOB}),
    "another text of a job": _top(workflows={"job": {**JOB, "description": "Do all."}}),
    "a longer job": _top(workflows={"job": {**JOB, "timeout_seconds": 61}}),
    "another command": _top(lsp={"servers": [{**SERVER, "command": ["server"]}]}),
    "another server": _top(lsp={"servers": [SERVER, {**SERVER, "lang": "c"}]}),
    "more steps than usual": {"max_steps": 51},
    "a debugger": _top(dap={"adapters": [{"runtime": "own", "type": "own", "command": ["own"]}]}),
}
NARROWER: dict[str, dict[str, Any]] = {
    "the same": {},
    "a narrower path": _cage(fs=[{"mode": "rw", "path": "src/a"}]),
    "reading only": _cage(fs=[{"mode": "ro", "path": "src"}]),
    "more held back": _cage(fs=[*CAGE["fs"], {"mode": "ro", "path": "src/b"}]),
    "no path": _cage(fs=[]),
    "one host fewer": _cage(net={"allow": ["b.example:80"]}),
    "no network": _cage(net={"allow": []}),
    "no grant": _cage(capabilities=[]),
    "no variable": _cage(env={}),
    "a lower limit": _cage(limits={"pids": 10, "memory_mb": 100, "walltime_sec": 5}),
    "one tool fewer": {"tools": {"file.*": ON, "search.*": ON}},
    "a single tool": {"tools": {"file.read": ON}},
    "a tool switched off": {"tools": {**AGREED["tools"], "file.write": OFF}},
    "no tools": {"tools": {}},
    "no agent below": {"subagents": {}},
    "no plugin": {"plugins": {}},
    "no hooks": _plugin(hooks=[]),
    "no job": _top(workflows={}),
    "a job for fewer": _top(workflows={"job": {**JOB, "invokable_by": ["operator"]}}),
    "a shorter job": _top(workflows={"job": {**JOB, "timeout_seconds": 30}}),
    "no server": _top(lsp={"servers": []}),
    "fewer steps": {"max_steps": 3},
    "the usual steps": {"max_steps": 50},
    "dry runs": {"dry_run": True},
    "dry runs below": {"subagents": {"child": {**CHILD, "dry_run": True}}},
}


def _changed(daemon: Daemon, root: Path, change: dict[str, Any]) -> dict[str, Any]:
    """Agree to a project, change its file, and return how it is loaded then."""
    project = Project(root)
    project.describe(**_written(AGREED))
    daemon.load(project)
    project.describe(**_written({**AGREED, **change}))
    found: dict[str, Any] = daemon.post(f"/projects/{project.id}/reload")
    return found


def _written(project: dict[str, Any]) -> dict[str, Any]:
    plugins = {
        name: {key: value for key, value in one.items() if value is not None}
        for name, one in project["plugins"].items()
    }
    return {**project, "plugins": plugins}


@pytest.mark.parametrize("change", WIDER)
def test_what_is_wider_asks_again(daemon: Daemon, tmp_path: Path, change: str) -> None:
    found = _changed(daemon, tmp_path / "p", WIDER[change])
    assert found["trusted"] is False
    new = [one for one in found["ask"]["things"] if one["new"]]
    assert new
    assert len(new) < len(found["ask"]["things"]), "only what is new is marked"
    assert [line for line in found["ask"]["lines"] if "(NEW)" in line]
    (cage,) = {str(agent["cage"]["value"]) for agent in found["tree"]["agents"]}
    assert f"'mode': 'ro', 'path': '{tmp_path}/p'" in cage
    assert "'net': []" in cage
    assert found["tree"]["lsp"] == found["tree"]["workflows"] == []
    rows = daemon.audit("project.restricted", project_id=found["id"])
    assert [row["data"]["known"] for row in rows] == [True]


@pytest.mark.parametrize("change", NARROWER)
def test_what_is_narrower_does_not(daemon: Daemon, tmp_path: Path, change: str) -> None:
    found = _changed(daemon, tmp_path / "p", NARROWER[change])
    assert found["trusted"] is True, [one for one in found["ask"]["things"] if one["new"]]
    assert daemon.audit("project.restricted", project_id=found["id"]) == []


def test_what_was_agreed_to_may_come_back(daemon: Daemon, tmp_path: Path) -> None:
    first = _changed(daemon, tmp_path / "p", NARROWER["no network"])
    for change, trusted in (("every host", False), ("no network", True), ("all tools", False)):
        project = Project(tmp_path / "p")
        project.describe(**_written({**AGREED, **{**WIDER, **NARROWER}[change]}))
        assert daemon.post(f"/projects/{first['id']}/reload")["trusted"] is trusted
    project.describe(**_written(AGREED))
    assert daemon.post(f"/projects/{first['id']}/reload")["trusted"] is True
