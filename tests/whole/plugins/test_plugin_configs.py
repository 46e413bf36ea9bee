"""A plugin's two halves of configuration: the project's, committed, and the operator's, secret.

The plugin gets one object. What does not fit its schema is never delivered, and no secret shows in
the audit trail, the log or an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import Ear, heard
from whole.harness.plugin_terminal import at_terminal
from whole.harness.project import Project

Maker = Callable[..., PluginFolder]
LOCAL = """
[plugins."@scope/mem"]
api_token = "${SEA_TOKEN}-secret"
machine = "/srv/private/place"

[plugins.mem]
api_token = "wrong-section"

[plugins.raw]
api_token = "literal-raw-token"

[plugins.lost]
api_token = "${NO_SUCH_VARIABLE}"

[plugins.short]
api_token = "hunter2"

[plugins.extra]
api_token = "0123456789-extra"
nope = "unknown-half"

[plugins.shared]
api_token = "0123456789-shared"

[plugins.bare]
note = "a half without a schema"
"""
SYSTEM = {
    "type": "object",
    "properties": {
        "api_token": {"type": "string", "minLength": 10},
        "machine": {"type": "string"},
        "retries": {"type": "integer", "default": 4},
    },
    "required": ["api_token"],
    "additionalProperties": False,
}
PROJECT = {
    "type": "object",
    "properties": {
        "store": {"type": "string", "default": "config:/memory"},
        "recall_budget": {"type": "string", "enum": ["low", "mid", "high"], "default": "mid"},
        "model": {"type": "string"},
        "isolation": {"type": "string", "enum": ["agent", "project"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}
TOOL = {"name": "retain", "description": "Keeps.", "parameters_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator has secrets for plugins."""
    local = model.local_toml() + LOCAL
    made = Daemon(module_path / "h", local=local, env={"SEA_TOKEN": "blue-water"})
    made.start()
    yield made
    made.close()


def listening(daemon: Daemon, root: Path, name: str, **manifest: Any) -> tuple[PluginFolder, Ear]:
    """Return a plugin of this name, with one tool, whose messages can be read."""
    one = PluginFolder(daemon, root / name, name=name)
    on = {f"{name}.retain": [{"echo": True}], "a.b": [{"echo": True}]}
    return one, heard(one, {"on": on}, tools=[TOOL], methods=["a.b"], **manifest)


def declare(project: Project, name: str, config: Any = None, **more: Any) -> None:
    """Declare a plugin on the primary and load that."""
    declared = {"package": name, **({} if config is None else {"config": config}), **more}
    project.describe(plugins={"memory": declared})
    project.reload()


def everything(daemon: Daemon) -> str:
    """Return all that the daemon tells: its trail, its plugins, its log."""
    rows = daemon.get("/audit?limit=200")["items"]
    return json.dumps(rows) + json.dumps(daemon.get("/plugins")) + daemon.log()


@whole("PH-CONF-01", "PH-CONF-02", "PH-CONF-07", "PH-CONF-10")
def test_both_halves_reach_the_plugin_as_one_object_under_its_package(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    one, ear = listening(
        daemon, tmp_path, "mem",
        package="@scope/mem", config_schema=PROJECT, system_config_schema=SYSTEM,
    )  # fmt: skip
    assert one.run()["state"] == "running", one.state()
    half = {
        "store": "config:/notes",
        "recall_budget": "high",
        "model": "default",
        "isolation": "project",
        "tags": ["a", "b"],
    }
    declare(project, "@scope/mem", half, isolation="project")
    committed = project.read(".kaged/project.yaml")
    wait_for(lambda: len(ear.configs()) == 2)
    assert ear.configs()[-1] == {
        **half,
        "api_token": "blue-water-secret",
        "machine": "/srv/private/place",
        "retries": 4,
    }
    assert project.read(".kaged/project.yaml") == committed
    assert "blue-water" not in (daemon.home / "local.toml").read_text(encoding="utf-8")


@whole("PH-CONF-11", "PH-CONF-12", "PH-CONF-03", "PH-AMB-28")
def test_secrets_come_from_variables_or_as_they_stand_and_stay_unseen(
    daemon: Daemon, tmp_path: Path
) -> None:
    one, ear = listening(daemon, tmp_path, "raw", system_config_schema=SYSTEM)
    assert one.run()["state"] == "running"
    assert ear.configs() == [{"api_token": "literal-raw-token", "retries": 4}]
    assert one.call(x=1)["x"] == 1
    told = everything(daemon)
    for secret in ("literal-raw-token", "blue-water", "/srv/private/place"):
        assert secret not in told


@whole("PH-CONF-20")
def test_a_variable_that_is_not_set_stops_its_plugin_and_no_other(
    daemon: Daemon, tmp_path: Path
) -> None:
    lost, ear = listening(daemon, tmp_path, "lost", system_config_schema=SYSTEM)
    other, _ = listening(daemon, tmp_path, "shared", system_config_schema=SYSTEM)
    state = lost.run()
    assert state["state"] == "failed"
    for part in ("local.toml", "api_token", "NO_SUCH_VARIABLE"):
        assert part in state["note"], state["note"]
    assert ear.configs() == []
    assert other.run()["state"] == "running"


@whole("PH-CONF-06", "PH-AMB-57", "PH-AUD-29", "PH-CONF-18")
@pytest.mark.parametrize(
    ("name", "names"),
    [("lacking", "api_token"), ("short", "api_token"), ("extra", "nope")],
)
def test_a_bad_system_half_keeps_its_plugin_from_running_and_shows_no_value(
    daemon: Daemon, tmp_path: Path, name: str, names: str
) -> None:
    one, ear = listening(daemon, tmp_path, name, system_config_schema=SYSTEM)
    assert one.run()["state"] == "failed"
    (row,) = exactly(1, lambda: one.audit("plugin.config_validation_failed"))
    assert (row["data"]["name"], row["data"]["side"]) == (name, "system")
    assert names in json.dumps(row["data"]["errors"])
    assert ear.configs() == []
    told = everything(daemon)
    for secret in ("hunter2", "unknown-half", "0123456789-extra"):
        assert secret not in told


@whole("PH-CONF-05", "PH-AMB-57", "PH-AUD-29", "PH-CONF-14")
@pytest.mark.parametrize(
    ("config", "names"),
    [({"recall_budget": "huge"}, "recall_budget"), ({"colour": "red"}, "colour")],
)
def test_a_bad_project_half_refuses_that_declaration_alone(
    daemon: Daemon,
    plugin: Maker,
    project: Project,
    tmp_path: Path,
    config: dict[str, Any],
    names: str,
) -> None:
    one, ear = listening(daemon, tmp_path, plugin().name, config_schema=PROJECT)
    assert one.run()["state"] == "running"
    good = daemon.load(Project(tmp_path / "good"))
    declare(good, one.name, {"recall_budget": "low"})
    declare(project, one.name, config)
    (row,) = exactly(1, lambda: one.audit("plugin.config_validation_failed"))
    assert (row["data"]["name"], row["data"]["side"]) == (one.name, "project")
    assert names in json.dumps(row["data"]["errors"])
    state = one.state()
    assert (state["state"], state["projects"]) == ("running", [good.id])
    assert [text.split()[0] for text in state["refused"]] == [project.id]
    assert project.fail(f"{one.name}.retain")["code"] == "tool_not_found"
    assert good.call(f"{one.name}.retain", x=1)["x"] == 1
    assert all(sent.get(names) != config[names] for sent in ear.configs())


@whole("PH-CONF-09", "PH-CONF-17", "PH-CONF-03")
def test_a_system_field_in_a_project_file_is_refused_on_any_agent(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    loose = {**SYSTEM, "required": []}
    one, ear = listening(
        daemon, tmp_path, plugin().name, config_schema=PROJECT, system_config_schema=loose
    )
    one.run()
    declare(project, one.name, {"machine": "/mine"})
    (row,) = exactly(1, lambda: one.audit("plugin.config_validation_failed"))
    assert row["data"]["side"] == "project"
    assert "machine" in json.dumps(row["data"]["errors"])
    below = {
        "model": "default",
        "system_prompt": "x",
        "plugins": {"memory": {"config": {"machine": "/below"}}},
    }
    project.describe(
        plugins={"memory": {"package": one.name, "isolation": "project"}}, subagents={"kid": below}
    )
    project.reload()
    rows = exactly(2, lambda: one.audit("plugin.config_validation_failed"))
    assert rows[-1]["data"]["side"] == "project"
    assert project.call(f"{one.name}.retain", x=1)["x"] == 1
    kid = project.fail(f"{one.name}.retain", "primary.subagents.kid")
    assert kid["code"] == "tool_not_found"
    assert "/below" not in json.dumps(ear.configs())
    project.describe(plugins={"memory": {"package": one.name, "config": {"api_token": "x" * 12}}})
    refused = daemon.error("POST", f"/projects/{project.id}/reload")
    assert "local.toml" in str(refused)


@whole("PH-CONF-13", "PH-AMB-61")
def test_config_is_sent_at_the_start_when_there_is_any_and_again_when_a_project_comes(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    plain, said = listening(daemon, tmp_path, plugin().name)
    plain.run()
    assert plain.call(x=1)["x"] == 1
    assert [one["method"] for one in said.lines()] == ["initialize", "initialized", "a.b"]
    strict = {**PROJECT, "required": ["model"]}
    one, ear = listening(daemon, tmp_path, plugin().name, config_schema=strict)
    assert one.run()["state"] == "running"
    assert [each["method"] for each in ear.lines()] == [
        "initialize",
        "config.update",
        "initialized",
    ]
    assert ear.configs() == [{"store": "config:/memory", "recall_budget": "mid"}]
    declare(project, one.name, {"model": "fast"})
    wait_for(lambda: len(ear.configs()) == 2)
    merged = {"store": "config:/memory", "recall_budget": "mid", "model": "fast"}
    merged["isolation"] = "agent"  # its schema has this field, so it is told
    assert ear.configs()[-1] == merged
    (told,) = ear.params("projects.activated")
    assert (told["project"], told["config"]) == (project.id, merged)
    project.reload()
    exactly(2, ear.configs)
    bare, heard_half = listening(daemon, tmp_path, "bare")
    bare.run()
    assert heard_half.configs() == [{"note": "a half without a schema"}]


@whole("PH-AMB-13")
@pytest.mark.parametrize(
    ("how", "state", "updates"),
    [
        ("ok", "running", 1),
        ("early", "running", 2),
        ([-32601, "what?"], "running", 1),
        ([-32004, "no"], "failed", 1),
        ([-32603, "oops"], "failed", 1),
        ("late", "running", 1),
    ],
)
def test_each_answer_to_the_first_config_has_its_meaning(
    daemon: Daemon, plugin: Maker, how: Any, state: str, updates: int
) -> None:
    one = plugin()
    ear = heard(one, {"config": how, "on": {"a.b": [{"echo": True}]}}, config_schema=PROJECT)
    assert one.run()["state"] == state
    assert len(ear.configs()) == updates
    order = [each["method"] for each in ear.lines()]
    assert order[:2] == ["initialize", "config.update"]
    if state == "running":
        assert one.call(x=1)["x"] == 1  # it has read everything before that
        assert [each["method"] for each in ear.lines()].index("initialized") == 2
    else:
        assert "initialized" not in order


@whole("PH-CONF-13")
def test_defaults_are_filled_in_below_a_field_that_is_given_in_part(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    number = {"type": "integer"}
    inner = {"rows": {**number, "default": 10}, "bytes": {**number, "default": 20}}
    schema = {"type": "object", "properties": {"limits": {"type": "object", "properties": inner}}}
    one, ear = listening(daemon, tmp_path, plugin().name, config_schema=schema)
    one.run()
    assert ear.configs() == [{}]
    declare(project, one.name, {"limits": {"bytes": 5}})
    wait_for(lambda: len(ear.configs()) == 2)
    assert ear.configs()[-1] == {"limits": {"bytes": 5, "rows": 10}}


@whole("PH-CONF-15", "PH-CONF-16", "PH-AMB-23", "PH-AMB-58")
def test_each_agent_has_its_own_values_and_a_call_comes_with_the_right_ones(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    one, ear = listening(daemon, tmp_path, plugin().name, config_schema=PROJECT)
    pid = one.run()["pid"]

    def describe(tags: list[str]) -> None:
        kid = {
            "model": "default",
            "system_prompt": "x",
            "plugins": {"memory": {"config": {"tags": tags}}},
        }
        base = {"recall_budget": "high", "tags": ["primary"]}
        memory = {"package": one.name, "isolation": "project", "config": base}
        project.describe(plugins={"memory": memory}, subagents={"kid": kid})
        project.reload()

    kid, tool = "primary.subagents.kid", f"{one.name}.retain"
    describe(["researcher"])
    project.call(tool, x=0)  # behind whatever the project's coming brought
    ear.forget()
    for agent in ("primary", kid, kid, "primary"):
        assert "_config" not in project.call(tool, agent, x=1)
    relevant = [each for each in ear.lines() if each.get("method") in (tool, "config.update")]
    shown = [
        each["params"]["config"]["tags"] if "config" in each["params"] else "call"
        for each in relevant
    ]
    assert shown == ["call", ["researcher"], "call", "call", ["primary"], "call"]
    assert relevant[1]["params"]["config"] == {
        "store": "config:/memory",
        "recall_budget": "high",
        "tags": ["researcher"],
        "isolation": "project",
    }
    describe(["another"])
    project.call(tool, kid, x=1)
    assert ear.configs()[-1]["tags"] == ["another"]
    assert one.state()["pid"] == pid


@whole("PH-AMB-23")
def test_a_plugin_that_asks_for_it_gets_the_config_with_each_call(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    one, ear = listening(
        daemon, tmp_path, plugin().name, config_schema=PROJECT, per_call_config=True
    )
    one.run()
    kid = {"model": "default", "system_prompt": "x"}
    kid["plugins"] = {"memory": {"config": {"tags": ["kid"]}}}  # type: ignore[assignment]
    memory = {"package": one.name, "isolation": "project", "config": {"tags": ["root"]}}
    project.describe(plugins={"memory": memory}, subagents={"kid": kid})
    project.reload()
    tool = f"{one.name}.retain"
    project.call(tool, x=0)  # behind whatever the project's coming brought
    ear.forget()
    for agent, tags in (("primary", ["root"]), ("primary.subagents.kid", ["kid"])):
        project.call(tool, agent, x=1)
        sent = ear.params(tool)[-1]
        assert sent["_config"]["tags"] == tags
        assert set(sent["_context"]) == {
            "operator_id", "project_id", "agent_path", "session_id", "request_id",
        }  # fmt: skip
    assert ear.configs() == []


@whole("PH-CONF-19")
def test_an_invalid_change_is_refused_and_the_old_values_stay_in_force(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    knob = {
        "type": "enum", "label": "Budget", "values": ["low", "mid", "high", "huge"],
        "default": "mid", "binds_to": "config.recall_budget",
    }  # fmt: skip
    one, ear = listening(
        daemon, tmp_path, plugin().name, config_schema=PROJECT, knobs={"budget": knob}
    )
    one.run()
    declare(project, one.name, {"recall_budget": "low"})
    wait_for(lambda: len(ear.configs()) == 2)
    before, text = ear.configs(), project.read(".kaged/project.yaml")
    body = {"project_id": project.id, "value": "huge"}
    assert daemon.error("PUT", f"/plugins/{one.name}/knobs/budget", body)["status"] == 422
    exactly(2, ear.configs)
    assert project.read(".kaged/project.yaml") == text
    project.call(f"{one.name}.retain", x=1)
    assert ear.configs() == before
    daemon.ask("PUT", f"/plugins/{one.name}/knobs/budget", {**body, "value": "high"})
    wait_for(lambda: len(ear.configs()) == 3)
    assert ear.configs()[-1]["recall_budget"] == "high"


@whole("PH-AMB-24", "PH-AMB-25")
def test_isolation_has_one_value_and_what_is_shared_is_declared_again(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    one, _ = listening(daemon, tmp_path, plugin().name, config_schema=PROJECT)
    one.run()
    tool, kid = f"{one.name}.retain", "primary.subagents.kid"

    def load(primary: Any, below: Any) -> list[str]:
        lower = {"model": "default", "system_prompt": "x", "plugins": {"memory": below}}
        project.describe(
            plugins={} if primary is None else {"memory": primary}, subagents={"kid": lower}
        )
        got = daemon.client.post(f"/api/v1/projects/{project.id}/reload", json={"trust": True})
        if got.is_success:
            return list(one.state()["refused"])
        return [str(each["message"]) for each in got.json()["error"]["data"]["problems"]]

    package = {"package": one.name}
    shared = {**package, "isolation": "project"}
    for primary in (shared, {**package, "config": {"isolation": "project"}}):
        assert load(primary, {}) == []
        assert project.call(tool, kid, x=1)["x"] == 1
    assert load(shared, shared) == [], "restated"
    assert load({**shared, "config": {"isolation": "agent"}}, shared)
    assert load(shared, {"package": "someone-else"})
    assert load(shared, {**package, "isolation": "agent"})
    assert load(None, shared), "shared with nobody"


@whole("PH-AMB-26")
def test_a_package_gives_the_name_and_its_section_may_hold_the_hosts_keys(
    daemon: Daemon, plugin: Maker, project: Project, tmp_path: Path
) -> None:
    one, ear = listening(daemon, tmp_path, "shared", system_config_schema=SYSTEM)
    if not (daemon.home / "plugins" / "shared").exists():
        one.run()
    section = (daemon.home / "local.toml").read_text(encoding="utf-8").split("[plugins.shared]")[1]
    assert "installed" in section.split("[")[0], "bookkeeping and a token in one section"
    assert one.state()["state"] == "running"
    declare(project, "@kaged/shared")
    assert one.state()["projects"] == [project.id]
    del ear


@whole("PH-AMB-68")
def test_only_the_operator_adds_grants_and_they_are_shown_as_added(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    one = PluginFolder(daemon, tmp_path / "writer", {"on": {"a.b": [{"env": True}]}}, name="writer")
    one.run()
    assert "KAGED_CONFIG_ROOT" not in one.call()["env"]
    project = daemon.load(Project(tmp_path / "p"))
    grant = "write:fs:config:/memory"
    project.describe(plugins={"w": {"package": "writer", "grants": [grant]}})
    assert "grants" in str(daemon.error("POST", f"/projects/{project.id}/reload"))
    daemon.stop()
    file = daemon.home / "local.toml"
    text = file.read_text(encoding="utf-8")
    wanted = text.replace("[plugins.writer]\n", f'[plugins.writer]\ngrants = ["{grant}"]\n')
    file.write_text(wanted, encoding="utf-8")
    daemon.start()
    wait_for(lambda: one.state()["state"] == "running")
    assert one.state()["operator_grants"] == [grant]
    root = Path(one.call()["env"]["KAGED_CONFIG_ROOT"])
    act = {"write": str(root / "memory" / "kept")}
    line = daemon.cli("plugin", "list", "--verbose").out.rstrip("\n").split("\t")
    assert line[-2:] == ["", grant], "not one of its own capabilities"
    _, screen = at_terminal(daemon, "plugin", "list", "--verbose", answer="")
    assert "operator" in screen.lower(), screen
    spawned = one.audit("plugin.spawned")[-1]
    assert grant in json.dumps(spawned["data"])
    one.write({"on": {"a.b": [act]}}, name="writer", version="2.0.0")
    shown = daemon.post("/plugins/preview", {"path": str(one.root)})
    assert [each["text"] for each in shown["capabilities"] if each["operator_added"]] == [grant]
    one.install()
    assert one.call() == {"ok": True}
    stored = list((daemon.home / "plugin-data").rglob("kept"))
    assert [each.read_text(encoding="utf-8") for each in stored] == ["written\n"]
    claims = {"answer": {"capabilities_used": [grant]}}
    one.write(claims, name="writer", version="3.0.0")
    one.install()
    assert one.state()["state"] == "failed"
    assert one.audit("plugin.capability_overreach")
