"""The configuration that project files give to plugins, and the names of projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.project_stage import TOOL, ProjectStage, event, subagent
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.states import PluginState as S
from requirements import requirement

CODER = "primary.subagents.coder"
SCHEMA = {
    "type": "object",
    "properties": {"tag": {"type": "string", "default": "none"}},
    "additionalProperties": False,
}
SECRETS = {
    "type": "object",
    "properties": {"api_token": {"type": "string"}},
    "required": ["api_token"],
    "additionalProperties": False,
}


@requirement("PH-CONF-16", "PH-AMB-58", "PH-METH-18")
async def test_a_changed_override_counts_at_the_next_call(stage: ProjectStage) -> None:
    await stage.running("memory", tools=[TOOL], config_schema=SCHEMA, hooks=["pre_compact"])
    base = {"package": "memory", "isolation": "project", "config": {"tag": "base"}}

    async def load(tag: str) -> None:
        below = subagent(plugins={"memory": {"config": {"tag": tag}}})
        await stage.load({"plugins": {"memory": base}, "subagents": {"coder": below}})

    def in_force() -> list[str]:
        sent = [m for m in stage.received("memory") if m["method"] == "config.update"]
        return [m["params"]["config"]["tag"] for m in sent]

    await load("one")
    answer = await stage.tool("memory.say", CODER, text="x")
    assert answer["text"] == "x"
    assert answer["_context"]["agent_path"] == CODER
    assert answer["_context"]["session_id"] == "ses_1"
    assert in_force()[-1] == "one"
    pid = stage.supervisor.status("memory")["pid"]
    await load("two")
    await stage.supervisor.hooks.pre_compact(
        stage.participants(CODER), stage.context(CODER), event()
    )
    assert in_force()[-1] == "two"
    await stage.tool("memory.say", "primary")
    assert in_force()[-1] == "base"
    assert stage.supervisor.status("memory")["pid"] == pid
    # Structure is judged when the project is loaded.
    below = subagent(plugins={"memory": {"isolation": "agent"}})
    with pytest.raises(ConfigFileInvalid):
        await stage.load({"plugins": {"memory": base}, "subagents": {"coder": below}})


@requirement("PH-CONF-09", "PH-CONF-17")
async def test_a_system_field_has_no_place_in_a_project_file(stage: ProjectStage) -> None:
    stage.secrets["memory"] = {"address": "here"}
    system = {"type": "object", "properties": {"address": {"type": "string"}}}
    await stage.running("memory", tools=[TOOL], config_schema=SCHEMA, system_config_schema=system)
    leaking = {"package": "memory", "config": {"address": "elsewhere"}}
    (refused,) = (await stage.load({"plugins": {"memory": leaking}})).refused
    assert refused.data is not None
    assert refused.data["side"] == "project"
    assert "address belongs to the operator's local.toml" in str(refused.data["errors"])
    event_data = await stage.lab.until_event("plugin.config_validation_failed")
    assert (event_data["name"], event_data["side"]) == ("memory", "project")
    base = {"package": "memory", "isolation": "project"}
    below = subagent(plugins={"memory": {"config": {"address": "elsewhere"}}})
    admitted = await stage.load({"plugins": {"memory": base}, "subagents": {"coder": below}})
    assert [one.agent_path for one in admitted.refused] == [CODER]
    await stage.tool("memory.say")
    configs = [m["params"] for m in stage.received("memory") if m["method"] == "config.update"]
    assert all(one["config"]["address"] == "here" for one in configs)
    # There is no annotation for it: the place of the field is all that counts.
    odd = {"type": "object", "properties": {"x": {"type": "string", "system_only": True}}}
    await stage.running("odd", config_schema=odd)
    admitted = await stage.load({"plugins": {"odd": {"package": "odd", "config": {"x": "y"}}}})
    assert admitted.refused == ()


@requirement("PH-AMB-57")
async def test_a_bad_half_costs_the_plugin_or_the_declaration(stage: ProjectStage) -> None:
    stage.secrets["needy"] = {"api_token": 7}
    needy = await stage.add("needy", system_config_schema=SECRETS)
    assert needy.state is S.FAILED
    failed = await stage.lab.until_event("plugin.config_validation_failed")
    assert (failed["name"], failed["side"]) == ("needy", "system")
    plugin = await stage.running("memory", tools=[TOOL], config_schema=SCHEMA)
    good, bad = {"tag": "fine"}, {"tag": 7}
    below = subagent(plugins={"memory": {"package": "memory", "config": bad}})
    admitted = await stage.load(
        {
            "plugins": {"memory": {"package": "memory", "config": good}},
            "subagents": {"coder": below},
        }
    )
    assert [one.agent_path for one in admitted.accepted] == ["primary"]
    assert [one.agent_path for one in admitted.refused] == [CODER]
    assert plugin.state is S.RUNNING
    assert (await stage.tool("memory.say"))["_context"]["agent_path"] == "primary"
    failed = await stage.lab.until_event("plugin.config_validation_failed", 2)
    assert (failed["name"], failed["side"]) == ("memory", "project")


@requirement("PH-AMB-61")
async def test_a_plugin_that_starts_again_has_the_projects_half_before_it_is_initialized(
    stage: ProjectStage,
) -> None:
    await stage.running("memory", tools=[TOOL], config_schema=SCHEMA)
    for project, tag in (("prj_one", "one"), ("prj_two", "two")):
        declared = {"memory": {"package": "memory", "config": {"tag": tag}}}
        await stage.load({"plugins": declared}, project)
    await stage.supervisor.restart("memory", "test")
    received = stage.received("memory")
    begun = max(at for at, one in enumerate(received) if one["method"] == "initialize")
    told = received[begun + 1]
    assert told["method"] == "config.update"
    assert told["params"]["config"].get("tag") == "two", "of the project loaded last"


@requirement("PH-AMB-17")
async def test_a_project_goes_by_one_name_everywhere(stage: ProjectStage, tmp_path: Path) -> None:
    await stage.running("memory", tools=[TOOL])
    declared = {"plugins": {"memory": {"package": "memory"}}}
    # Two folders of one name have one slug, and are two projects all the same.
    first, second = tmp_path / "x" / "music", tmp_path / "y" / "music"
    await stage.load(declared, "prj_one", first)
    await stage.load(declared, "prj_two", second)
    told = [m for m in stage.received("memory") if m["method"] == "projects.activated"]
    assert [m["params"]["project"] for m in told] == ["prj_one", "prj_two"]
    for project in ("prj_one", "prj_two"):
        context = stage.context(project=project)
        answer: Any = await stage.supervisor.call_tool("memory.say", {}, context)
        assert answer["_context"]["project_id"] == project
    await stage.supervisor.restart("memory", "test")
    greeting = [m for m in stage.received("memory") if m["method"] == "initialize"][-1]
    assert greeting["params"]["projects"] == ["prj_one", "prj_two"]
    await stage.supervisor.unload_project("prj_one")
    gone = [m for m in stage.received("memory") if m["method"] == "projects.deactivated"]
    assert [m["params"] for m in gone] == [{"project": "prj_one"}]
