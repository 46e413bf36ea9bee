"""Observers and compactors: what a role allows and what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.plugin_lab import manifest
from fakes.project_stage import SYSTEM, ProjectStage, event, subagent
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.states import PluginState as S
from requirements import requirement

CODER = "primary.subagents.coder"
DECLARED = {"plugins": {"stub": {"package": "stub"}}}


@requirement("PH-AMB-53")
async def test_odd_roles_are_refused_or_not_listened_to(stage: ProjectStage) -> None:
    with pytest.raises(ConfigFileInvalid):
        manifest(roles=[], hooks=["on_session_start"])
    said = [{"result": {"inject": "listen to me", "retain": ["this"]}}]
    await stage.running(
        "stub",
        {"on": {"kaged.hook.on_session_start": said, "kaged.hook.post_compact": said}},
        roles=["compactor"],
        hooks=["on_session_start", "pre_compact", "post_compact"],
    )
    await stage.load(DECLARED)
    seen = await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    assert (seen.inject, seen.retain) == ((), ())
    assert "kaged.hook.on_session_start" in stage.methods("stub")


@requirement("PH-AMB-10")
async def test_a_compactor_needs_the_role_and_the_designation(stage: ProjectStage) -> None:
    answer = {"role": "compactor", "messages": [SYSTEM], "superseded": ["m1"]}
    on = {"on": {"kaged.hook.pre_compact": [{"result": answer}]}}
    common: dict[str, Any] = {"hooks": ["pre_compact"]}
    await stage.running("squeeze", on, roles=["compactor"], package="@scope/squeeze", **common)
    await stage.running("press", on, roles=["compactor"], **common)
    await stage.running("watch", on, **common)

    async def compact(agent: str = "primary") -> Any:
        return await stage.supervisor.hooks.pre_compact(
            stage.participants(agent), stage.context(agent), event()
        )

    mine = {"plugins": {"mine": {"package": "@scope/squeeze"}}}
    await stage.load(mine)  # the role alone: the configured strategy runs
    outcome = await compact()
    assert (outcome.replacement, outcome.fallback) == (None, None)
    for name in ("mine", "squeeze", "@scope/squeeze"):  # key, plugin name, package
        await stage.load({**mine, "compaction": {"delegate": {"plugin": name}}})
        assert (await compact()).replacement is not None, name
    watcher = {"plugins": {"watch": {"package": "watch"}}}
    admitted = await stage.load({**watcher, "compaction": {"delegate": {"plugin": "watch"}}})
    assert "is no compactor" in admitted.refused[0].reason
    with pytest.raises(ConfigFileInvalid):  # not declared on the agent
        await stage.load({**mine, "compaction": {"delegate": {"plugin": "press"}}})
    both = {"plugins": {"mine": {"package": "@scope/squeeze"}, "press": {"package": "press"}}}
    below = subagent(
        plugins={"press": {"package": "press"}}, compaction={"delegate": {"plugin": "press"}}
    )
    admitted = await stage.load({**both, "subagents": {"coder": below}})
    assert [(one.plugin, one.agent_path) for one in admitted.refused] == [("press", "primary")]
    violation = await stage.lab.until_event("plugin.role_violation")
    assert (violation["first"], violation["second"]) == ("squeeze", "press")
    assert stage.supervisor.get("press").state is S.RUNNING
    assert (await compact(CODER)).replacement is not None
