"""What a manifest may claim: names of tools and the version of the API, checked twice."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.plugin_lab import manifest
from fakes.project_stage import TOOL, ProjectStage
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.states import PluginState as S
from raising import raises_code
from requirements import requirement

NAME = st.text("abz09-_.A ", min_size=1, max_size=5)


@given(plugin=NAME, tool=NAME)
@requirement("PH-TOOL-03")
def test_every_tool_that_can_be_declared_has_a_legal_full_name(plugin: str, tool: str) -> None:
    try:
        found = manifest(name=plugin, tools=[{**TOOL, "name": tool}])
    except ConfigFileInvalid:
        return
    full = f"{found.name}.{found.tools[0].name}"
    assert re.fullmatch(r"[a-z][a-z0-9-]+\.[a-z][a-z0-9_]*", full)


@requirement("PH-MANI-29", "PH-TOOL-04")
async def test_a_foreign_tool_name_is_refused_in_the_manifest_and_at_registration(
    stage: ProjectStage,
) -> None:
    for name in ("other.tool", "Say", "", "say-it", "stub.say"):
        with pytest.raises(ConfigFileInvalid):
            manifest(tools=[{**TOOL, "name": name}])
    installed = stage.lab.install(tools=[TOOL])
    for name in ("other.tool", "Say", "", "say-it", "stub.say"):
        tool = replace(installed.manifest.tools[0], name=name)
        forged = replace(installed, manifest=replace(installed.manifest, tools=(tool,)))
        with raises_code("tool_name_invalid"):
            stage.supervisor.register(forged)
    assert list(stage.supervisor.plugins) == []
    assert list(stage.supervisor.tools) == []


@requirement("PH-MANI-11")
@pytest.mark.parametrize(
    "command", ["../out/main.py", "./../out/main.py", "./link.py", "../stub-more/main.py"]
)
async def test_a_command_that_leaves_the_plugins_folder_is_never_run(
    stage: ProjectStage, command: str
) -> None:
    """A folder beside it whose name begins with the plugin's own is another folder."""
    ran = stage.lab.root / "ran"
    installed = stage.lab.install(command=[command], capabilities=[f"write:fs:{stage.lab.root}"])
    assert installed.directory.name == "stub"
    for name in ("out", "stub-more"):
        outside = installed.directory.parent / name / "main.py"
        outside.parent.mkdir()
        outside.write_text(f"#!/bin/sh\ntouch {ran}\n", encoding="utf-8")
        outside.chmod(0o755)
    (installed.directory / "link.py").symlink_to("../out/main.py")
    plugin = stage.lab.plugin(installed)
    await plugin.start()
    assert plugin.state is S.FAILED
    assert "leaves the plugin's directory" in (plugin.note or "")
    assert await stage.lab.seen("plugin.spawned") == []
    assert not ran.exists()


@requirement("PH-AMB-12")
async def test_the_api_version_is_gated_twice(stage: ProjectStage) -> None:
    for version in (0, -1, 2, 99):
        with pytest.raises(ConfigFileInvalid):
            manifest(kaged_api=version)
    assert manifest(kaged_api=1).kaged_api == 1
    for number, version in enumerate((0, 2)):
        plugin = await stage.add(f"stub{number}", {"answer": {"api_version": version}})
        assert plugin.state is S.FAILED
        await stage.lab.until_event("plugin.api_mismatch", number + 1)
