"""Policies see the same person, with roles, teams and claims, on whatever path a call comes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import FRONT_END, Guest
from whole.harness.plugin import PluginFolder
from whole.harness.policies import CAPABILITIES, PolicySite, spy
from whole.harness.project import Project
from whole.harness.services import CAGE, CALLER, Bridge, capability, operation, step
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]
HEADERS = """[auth.front_end]
roles = "X-Kaged-Roles"
teams = "X-Kaged-Teams"
claims = { department = "X-Department" }
[people.ann]
roles = ["lead"]
teams = ["blue"]
[people.bob]
"""
SAID = {
    "ann": {"X_Kaged_Roles": "dev", "X_Kaged_Teams": "red", "X_Department": "R&D"},
    "bob": {"X_Kaged_Roles": "ops"},
}
KNOWN = {
    "ann": (["dev", "lead"], ["blue", "red"], {"department": "R&D"}),
    "bob": (["ops"], [], {}),
}
READS = call("file.read", path="a.txt")


@pytest.fixture(scope="module")
def site(module_path: Path) -> PolicySite:
    made = PolicySite(module_path / "policies")
    made.write(spy("spy", *CAPABILITIES))
    return made


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, site: PolicySite) -> Iterator[Daemon]:
    """Yield a daemon with a policy that looks, and a bridge."""
    look = operation("look", requires_auth=False)
    bridge = Bridge(module_path, "post", {"definitions": [capability("post.box", look)]})
    config = f"{FRONT_END}{HEADERS}{site.config_toml()}{bridge.toml()}"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    site.daemon = made
    wait_for(site.loads)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(daemon: Daemon, module_path: Path) -> Project:
    made = Project(module_path / "work")
    inputs = {"word": {"type": "string", "required": True}}
    report = {"description": "Do it.", "inputs": inputs, "invokable_by": ["guest"]}
    helper = {
        "description": "Helps.",
        "model": "default",
        "system_prompt": "You help.",
        "cage": CAGE,
        "tools": {"file.*": {"enabled": True}},
    }
    made.describe(top={"workflows": {"report": report}}, cage=CAGE, subagents={"helper": helper})
    PluginFolder(
        daemon, module_path / "notes", {"on": {"a.b": [{"echo": True}]}}, name="notes"
    ).run()
    made.write("a.txt", "one\n")
    look = step("invoke", capability="post.box", operation="look")
    made.write("job.json", json.dumps({"conversations": [[look]]}))
    shutil.copy(CALLER, made.root / "caller.py")
    return daemon.load(made)


def _use(guest: Guest, project: Project, tool: str, **params: str) -> None:
    body = {"agent": "primary", "tool": tool, "params": params}
    guest.post(f"/projects/{project.id}/tools/call", body)


def _direct(guest: Guest, project: Project, _: ModelServer) -> None:
    _use(guest, project, "file.read", path="a.txt")


def _account(guest: Guest, project: Project, _: ModelServer) -> None:
    _use(guest, project, "shell.bash", command="python3 caller.py job.json")


def _over_mcp(guest: Guest, project: Project, _: ModelServer) -> None:
    use = {"name": "file.read", "arguments": {"path": "a.txt"}}
    assert "error" not in guest.mcp(project.id, "tools/call", use)


def _in_a_run(guest: Guest, project: Project, model: ModelServer) -> None:
    word, place = fresh("run"), f"/projects/{project.id}/sessions"
    model.play(word, READS, say(f"{word} done."))
    session = guest.post(place)["id"]
    guest.post(f"{place}/{session}/message", {"text": f"{word} please"})
    wait_for(lambda: guest.get(f"{place}/{session}/runs")["items"][0]["status"] in ENDED)


def _in_a_subagent(guest: Guest, project: Project, model: ModelServer) -> None:
    word, inner, place = fresh("outer"), fresh("inner"), f"/projects/{project.id}/sessions"
    model.play(word, call("agent-helper", message=f"{inner} please"), say(f"{word} done."))
    model.play(inner, READS, say(f"{inner} done."))
    session = guest.post(place)["id"]
    guest.post(f"{place}/{session}/message", {"text": f"{word} please"})
    wait_for(lambda: guest.get(f"{place}/{session}/runs")["items"][0]["status"] in ENDED)


def _in_a_workflow(guest: Guest, project: Project, model: ModelServer) -> None:
    word, place = fresh("flow"), f"/projects/{project.id}"
    model.play(word, READS, say(f"{word} done."))
    body = {"inputs": {"word": word}}
    run = guest.post(f"{place}/workflows/report/runs", body)["run_id"]
    wait_for(lambda: guest.get(f"{place}/runs/{run}")["status"] != "running")


def _a_plugins_method(guest: Guest, project: Project, _: ModelServer) -> None:
    """For a session of theirs, and for none."""
    session = guest.post(f"/projects/{project.id}/sessions")["id"]
    for said in ({"X-Kaged-Session": session}, {}):
        got = guest.raw("POST", "/api/v1/plugins/notes/call/a.b", json={}, headers=said)
        assert got.is_success, got.text


PATHS: dict[str, tuple[Callable[[Guest, Project, ModelServer], None], str]] = {
    "over http": (_direct, "file.read"),
    "over mcp": (_over_mcp, "file.read"),
    "in a run": (_in_a_run, "file.read"),
    "in a subagent": (_in_a_subagent, "file.read"),
    "in a workflow": (_in_a_workflow, "file.read"),
    "on an account": (_account, "post.box.look"),
    "at a plugin's method": (_a_plugins_method, "notes.a.b"),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_policy_knows_each_person_on_this_path(
    site: PolicySite, shared: Project, model: ModelServer, guest: Come, path: str
) -> None:
    walk, name = PATHS[path]
    for user, said in SAID.items():
        site.seen_file.write_text("", encoding="utf-8")
        walk(guest(user, **said), shared, model)
        rows: list[dict[str, Any]] = [
            one for one in site.seen("spy", "tool_pre_invoke") if one["payload"]["name"] == name
        ]
        assert rows, path
        for one in rows:
            who = one["extensions"]["security"]["subject"]
            assert (who["id"], who["type"]) == (user, "user")
            assert (sorted(who["roles"]), sorted(who["teams"]), who["claims"]) == KNOWN[user]
