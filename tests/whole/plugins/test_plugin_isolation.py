"""Which agents have a plugin, whose settings it is called with, and whose data it keeps apart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import Guest
from whole.harness.project import Project

MEMORY = Path(__file__).parents[3] / "plugins" / "examples" / "memory-markdown"
CODER = "primary.subagents.coder"
TOOL = {"name": "look", "description": "Looks.", "parameters_schema": {"type": "object"}}
SCHEMA = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "budget": {"type": "string", "default": "low"},
    },
}
ECHOES = """
from kit import *
greet()
def on(message):
    answer(message, message["params"])
serve(on)
"""


def below(**more: Any) -> dict[str, Any]:
    """Describe a subagent."""
    return {
        "model": "default",
        "description": "Helps.",
        "system_prompt": "Help.",
        "cage": {"fs": []},
        **more,
    }


def described(
    root: Path, primary: Mapping[str, Any] | None, **subagents: Mapping[str, Any] | None
) -> Project:
    """Write a project whose agents declare these plugins."""
    project = Project(root)
    agents = {
        name: below(**({} if plugins is None else {"plugins": plugins}))
        for name, plugins in subagents.items()
    }
    own = {} if primary is None else {"plugins": primary}
    project.describe(**own, subagents=agents)
    return project


def tools(project: Project, agent: str) -> set[str]:
    """Return the names of an agent's tools."""
    return {one["name"] for one in project.get(f"/tools?agent={agent}")["tools"]}


def agents(project: Project) -> dict[str, Any]:
    """Return the resolved agents of a project by path."""
    return {one["path"]: one for one in project.get("")["tree"]["agents"]}


@pytest.fixture(scope="module")
def echoing(daemon: Daemon, module_path: Path) -> Guest:
    """Return a plugin with a tool, settings and a hook."""
    made = Guest(
        daemon,
        module_path,
        ECHOES,
        name="echoing",
        tools=[TOOL],
        hooks=["on_session_start", "on_session_idle", "pre_compact"],
        config_schema=SCHEMA,
    )
    assert made.run()["state"] == "running"
    return made


def load(daemon: Daemon, project: Project, guest: Guest) -> Project:
    """Load a project and wait until its plugin was told."""
    before = len(guest.heard("projects.activated"))
    daemon.load(project)
    guest.await_heard("projects.activated", before + 1)
    return project


def refused(daemon: Daemon, project: Project) -> list[tuple[str, str]]:
    """Return key and code of what keeps a project from being loaded."""
    error = daemon.error("POST", "/projects", {"root": str(project.root), "trust": True})
    assert error["code"] == "config_invalid", error
    return [(one["key_path"], one["code"]) for one in error["data"]["problems"]]


@whole("PH-ISO-01", "PH-ISO-05")
@pytest.mark.parametrize("isolation", ["agent", "project"])
def test_an_agent_that_does_not_declare_a_plugin_has_nothing_of_it(
    daemon: Daemon, echoing: Guest, tmp_path: Path, isolation: str
) -> None:
    project = described(
        tmp_path / "p", {"it": {"package": "echoing", "isolation": isolation}}, coder=None
    )
    load(daemon, project, echoing)
    assert "echoing.look" in tools(project, "primary")
    assert "echoing.look" not in tools(project, CODER)
    assert project.call("echoing.look")["_context"]["agent_path"] == "primary"
    denied = project.fail("echoing.look", CODER)
    assert denied["code"] == "tool_not_found"
    assert agents(project)[CODER]["plugins"] == []


@whole("PH-AMB-20", "PH-ISO-01")
def test_declaring_a_plugin_is_what_gives_an_agent_its_tools_and_a_pattern_takes_them_away(
    daemon: Daemon, echoing: Guest, tmp_path: Path
) -> None:
    project = described(tmp_path / "p", None, coder={"it": {"package": "echoing"}})
    load(daemon, project, echoing)
    assert "echoing.look" in tools(project, CODER)
    assert "echoing.look" not in tools(project, "primary")
    assert project.call("echoing.look", CODER)["_context"]["agent_path"] == CODER
    plugins = {"it": {"package": "echoing"}}
    off = below(plugins=plugins, tools={"echoing.*": {"enabled": False}})
    project.describe(subagents={"coder": off})
    project.reload()
    assert "echoing.look" not in tools(project, CODER)
    assert project.fail("echoing.look", CODER)["code"] == "tool_not_found"


@whole("PH-ISO-02")
def test_isolation_is_agent_unless_it_is_said_and_project_is_the_other_word(
    daemon: Daemon, echoing: Guest, tmp_path: Path
) -> None:
    for number, (said, meant) in enumerate(
        (({}, "agent"), ({"isolation": "agent"}, "agent"), ({"isolation": "project"}, "project"))
    ):
        project = described(tmp_path / f"p{number}", {"it": {"package": "echoing", **said}})
        load(daemon, project, echoing)
        (declared,) = agents(project)["primary"]["plugins"]
        assert declared["isolation"]["value"] == meant
    for word in ("global", "", None, True, ["agent"]):
        wrong = described(tmp_path / "w", {"it": {"package": "echoing", "isolation": word}})
        found = refused(daemon, wrong)
        assert found[0][0] == "primary.plugins.it.isolation", (word, found)


@whole("PH-ISO-06", "PH-ISO-09", "PH-ISO-08", "PH-AMB-25")
@pytest.mark.parametrize(
    ("primary", "coder", "key"),
    [
        ({"isolation": "project"}, {}, "primary.plugins.it.package"),
        ({"package": "echoing"}, {"config": {}}, f"{CODER}.plugins.it.package"),
        (
            {"package": "echoing", "isolation": "project"},
            {"package": "other"},
            f"{CODER}.plugins.it.package",
        ),
        (
            {"package": "echoing", "isolation": "project"},
            {"isolation": "agent"},
            f"{CODER}.plugins.it.isolation",
        ),
        (
            None,
            {"package": "echoing", "isolation": "project"},
            f"{CODER}.plugins.it",
        ),
    ],
)
def test_a_structure_that_does_not_hold_is_refused_at_load_by_agent_and_field(
    daemon: Daemon,
    tmp_path: Path,
    primary: dict[str, Any] | None,
    coder: dict[str, Any],
    key: str,
) -> None:
    project = described(
        tmp_path / "p", None if primary is None else {"it": primary}, coder={"it": coder}
    )
    assert key in [one for one, _ in refused(daemon, project)]


@whole("PH-ISO-07", "PH-ISO-10", "PH-ISO-11", "PH-AMB-25")
def test_a_shared_plugin_is_overridden_field_by_field_and_lists_are_replaced(
    daemon: Daemon, echoing: Guest, tmp_path: Path
) -> None:
    base = {
        "package": "echoing",
        "isolation": "project",
        "hooks": ["pre_compact"],
        "config": {"tags": ["primary"], "budget": "mid"},
    }
    over = {"config": {"tags": ["researcher"]}, "hooks": ["on_session_idle"]}
    same = {"package": "echoing", "isolation": "project"}
    project = described(tmp_path / "p", {"it": base}, coder={"it": over}, other={"it": same})
    load(daemon, project, echoing)
    found = {path: one["plugins"][0] for path, one in agents(project).items()}
    coder = found[CODER]
    assert coder["package"]["value"] == "echoing"
    assert coder["isolation"]["value"] == "project"
    assert coder["hooks"]["value"] == ["on_session_idle"]
    assert coder["inherits"] is True
    assert {key: one["value"] for key, one in coder["config"].items()} == {
        "tags": ["researcher"],
        "budget": "mid",
    }
    other = found["primary.subagents.other"]
    assert other["hooks"]["value"] == ["pre_compact"]
    assert other["config"]["tags"]["value"] == ["primary"]
    # A hook for the primary alone that a subagent lists itself loads with a warning.
    (row,) = echoing.rows("plugin.hook.illegal")
    assert (row["hook"], row["agent_path"]) == ("on_session_idle", CODER)
    for agent, tags in (("primary", ["primary"]), (CODER, ["researcher"])):
        project.call("echoing.look", agent)
        config = echoing.heard("config.update")[-1]["params"]["config"]
        assert config == {"tags": tags, "budget": "mid"}


@whole("PH-AMB-23")
def test_one_process_serves_agents_with_different_settings_in_turn(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, ECHOES, tools=[TOOL], config_schema=SCHEMA)
    guest.run()
    one = {"it": {"package": guest.name, "config": {"budget": "one"}}}
    two = {"it": {"package": guest.name, "config": {"budget": "two"}}}
    project = load(daemon, described(tmp_path / "p", one, coder=two, equal=one), guest)
    full = f"{guest.name}.look"
    wait_for(lambda: guest.heard("config.update")[-1]["params"]["config"]["budget"] == "one")
    before = len(guest.heard())
    for agent in ("primary", "primary.subagents.equal", CODER, CODER, "primary"):
        got = project.call(full, agent, what="it")
        assert set(got) == {"what", "_context"}, "nothing but the context is added"
    heard = guest.heard()[before:]
    told = [
        one["params"]["config"]["budget"]
        if one["method"] == "config.update"
        else one["params"]["_context"]["agent_path"]
        for one in heard
        if one["method"] in {"config.update", full}
    ]
    assert told == [
        "primary",
        "primary.subagents.equal",
        "two",
        CODER,
        CODER,
        "one",
        "primary",
    ]
    assert len(guest.rows("plugin.spawned")) == 1
    # A changed value comes with the next call after the files were read again.
    changed = {"it": {"package": guest.name, "config": {"budget": "three"}}}
    agents_below = {"coder": below(plugins=changed), "equal": below(plugins=one)}
    project.describe(plugins=one, subagents=agents_below)
    project.reload()
    project.call(full, CODER)
    # The root's own settings are told anew as well, before the call or after it.
    heard = guest.heard()
    [*_, call] = [at for at, one in enumerate(heard) if one["method"] == full]
    [*_, last] = [one for one in heard[:call] if one["method"] == "config.update"]
    assert last["params"]["config"]["budget"] == "three"


HOLDS = """
from kit import *
greet()
def release(message):
    with open(os.environ["GATE"]) as gate:
        gate.read()
    write_down(b'{"method": "released"}\\n')
    answer(message, message["params"])
def on(message):
    if message["params"].get("what") == "held":
        threading.Thread(target=release, args=(message,), daemon=True).start()
    else:
        answer(message, message["params"])
serve(on)
"""


@whole("PH-AMB-23")
def test_a_call_under_other_settings_waits_until_those_under_way_are_answered(
    daemon: Daemon, tmp_path: Path
) -> None:
    """The plugin answers the first call when the test opens a gate, and reads on meanwhile."""
    gate = tmp_path / "guest-holding-shared" / "gate"
    gate.parent.mkdir()
    os.mkfifo(gate)
    guest = Guest(
        daemon, tmp_path, HOLDS, name="guest-holding", tools=[TOOL], config_schema=SCHEMA,
        env={"GATE": str(gate)},
    )  # fmt: skip
    guest.run()
    one = {"it": {"package": guest.name, "config": {"budget": "one"}}}
    two = {"it": {"package": guest.name, "config": {"budget": "two"}}}
    project = load(daemon, described(tmp_path / "p", one, coder=two, equal=one), guest)
    full = f"{guest.name}.look"
    wait_for(lambda: guest.heard("config.update")[-1]["params"]["config"]["budget"] == "one")
    before, updates = len(guest.heard()), len(guest.heard("config.update"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(project.call, full, "primary", what="held")
        guest.await_heard(full)
        # Whoever has the same settings is not held up.
        assert project.call(full, "primary.subagents.equal", what="it")["what"] == "it"
        second = pool.submit(project.call, full, CODER, what="it")
        wait_for(lambda: CODER in callers(project, full))
        exactly(updates, lambda: guest.heard("config.update"))
        gate.write_text("open", encoding="utf-8")
        assert first.result()["what"] == "held"
        assert second.result()["what"] == "it"
    told = [one["method"] for one in guest.heard()[before:]]
    relevant = [one for one in told if one in {full, "released", "config.update"}]
    assert relevant == [full, full, "released", "config.update", full]


def callers(project: Project, tool: str) -> list[str]:
    """Return who has called a tool in a project, by the audit log."""
    rows = project.daemon.audit("tool.called", project_id=project.id)
    return [row["data"]["caller"] for row in rows if row["data"]["tool_name"] == tool]


@whole("PH-AMB-23")
def test_a_plugin_that_asks_for_it_gets_its_settings_with_each_call(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(
        daemon, tmp_path, ECHOES, tools=[TOOL], config_schema=SCHEMA, per_call_config=True
    )
    guest.run()
    one = {"it": {"package": guest.name, "config": {"budget": "one"}}}
    two = {"it": {"package": guest.name, "config": {"budget": "two"}}}
    project = load(daemon, described(tmp_path / "p", one, coder=two), guest)
    project.call(f"{guest.name}.look")
    updates = len(guest.heard("config.update"))
    for agent, budget in (("primary", "one"), (CODER, "two"), ("primary", "one")):
        got = project.call(f"{guest.name}.look", agent)
        assert got["_config"]["budget"] == budget
        assert len(got["_context"]) == 5
    exactly(updates, lambda: guest.heard("config.update"))


@whole("PH-AMB-24")
def test_isolation_may_also_be_a_setting_but_not_another_one(
    daemon: Daemon, tmp_path: Path
) -> None:
    words = {"type": "string", "enum": ["agent", "project"]}
    schema = {"type": "object", "properties": {"isolation": words}}
    guest = Guest(daemon, tmp_path, ECHOES, tools=[TOOL], config_schema=schema)
    guest.run()
    full = f"{guest.name}.look"
    for number, said in enumerate(({"isolation": "project"}, {"config": {"isolation": "project"}})):
        project = described(tmp_path / f"p{number}", {"it": {"package": guest.name, **said}})
        load(daemon, project, guest)
        project.call(full)
        assert guest.heard("config.update")[-1]["params"]["config"]["isolation"] == "project"
    both = {"isolation": "agent", "config": {"isolation": "project"}}
    wrong = described(tmp_path / "w", {"it": {"package": guest.name, **both}})
    got = daemon.client.post("/api/v1/projects", json={"root": str(wrong.root), "trust": True})
    if got.is_error:
        assert "isolation" in got.text
    else:
        wait_for(lambda: any("isolation" in one for one in guest.state()["refused"]))


@whole("PH-ISO-03", "PH-ISO-04")
@pytest.mark.parametrize(("isolation", "shared"), [("agent", False), ("project", True)])
def test_memory_is_each_agents_own_or_the_projects(
    daemon: Daemon, echoing: Guest, tmp_path: Path, isolation: str, shared: bool
) -> None:
    if "memory-markdown" not in {one["name"] for one in daemon.get("/plugins")["items"]}:
        shown = daemon.post("/plugins/preview", {"path": str(MEMORY)})
        daemon.post("/plugins", {"path": str(MEMORY), "digest": shown["digest"]})
        assert daemon.post("/plugins/memory-markdown/enable")["state"] == "running"
    both = {
        "memory": {"package": "memory-markdown", "isolation": isolation},
        "echo": {"package": "echoing", "isolation": isolation},
    }
    again = {"memory": {}, "echo": {}} if shared else both
    project = load(daemon, described(tmp_path / "boats", both, coder=again), echoing)
    wait_for(lambda: "memory-markdown.recall" in tools(project, CODER))
    said = f"The harbour master of {isolation} is called Ingrid."
    project.call("memory-markdown.retain", content=said)
    assert said in str(project.call("memory-markdown.recall", query="harbour"))
    others = project.call("memory-markdown.recall", CODER, query="harbour")
    assert (said in str(others)) is shared
    paths = [
        project.call("echoing.look", agent)["_context"]["agent_path"]
        for agent in ("primary", CODER)
    ]
    assert paths == ["primary", CODER]
    assert len(daemon.audit("plugin.spawned", text='"memory-markdown"')) == 1
