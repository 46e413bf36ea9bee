"""Where a plugin runs and which directories its `config:` and `project:` paths stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.plugin_lab import PluginLab
from fakes.project_stage import ProjectStage
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.states import PluginState as S
from requirements import requirement


@requirement("PH-MANI-11")
async def test_a_relative_command_starts_wherever_the_host_stands(
    lab: PluginLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "main.py").write_text("raise SystemExit('the wrong one')", encoding="utf-8")
    for number, command in enumerate((["./main.py"], ["/usr/bin/env", "python3", "./main.py"])):
        installed = lab.install({"on": {"a.b": [{"env": True}]}}, command=command)
        (installed.directory / "main.py").chmod(0o755)
        monkeypatch.chdir(elsewhere if number else "/")
        plugin = lab.plugin(installed)
        await plugin.start()
        assert plugin.state is S.RUNNING, plugin.note
        assert (await lab.call(plugin))["cwd"] == str(installed.directory)
        await plugin.stop("next")


@requirement("PH-AMB-05")
async def test_config_and_project_paths_stand_for_directories(
    stage: ProjectStage, tmp_path: Path
) -> None:
    lab = stage.lab
    for wrong in ("read:fs:config:/../x", "read:fs:memory", "read:fs:project:/a/../../b"):
        with pytest.raises(ConfigFileInvalid):
            lab.install(name="wrong", capabilities=[wrong])
    notes = lab.root / "data" / "memory" / "memory" / "notes"
    theirs = lab.root / "data" / "other" / "memory" / "notes"
    docs = {name: tmp_path / name / "docs" for name in ("boats", "cars", "bare")}
    for name, folder in docs.items():
        folder.mkdir(parents=True) if name != "bare" else folder.parent.mkdir()
        if name != "bare":
            (folder / "page").write_text(name, encoding="utf-8")
    capabilities = ["write:fs:config:/memory", "read:fs:project:/docs"]
    on = {
        "a.b": [{"write": str(notes)}],
        "c.d": [{"write": str(theirs)}],
        "e.f": [{"read": str(docs["boats"] / "page")}],
        "g.h": [{"read": str(docs["cars"] / "page")}],
    }
    methods = list(on)
    await stage.running("other", {}, capabilities=["write:fs:config:/memory"])
    plugin = await stage.running(
        "memory",
        {"on": on, "answer": {"methods": methods}},
        capabilities=capabilities,
        methods=methods,
    )
    # Without a project: its own directory, made on demand, and nobody else's.
    assert await lab.call(plugin, "a.b") == {"ok": True}
    assert notes.read_text(encoding="utf-8") == "written\n"
    assert "failed" in await lab.call(plugin, "c.d")
    assert not theirs.exists()
    assert "failed" in await lab.call(plugin, "e.f")
    first = plugin.conversation
    declared = {"plugins": {"memory": {"package": "memory"}}}
    await stage.load(declared, "boats", docs["boats"].parent)
    assert plugin.conversation is not first  # another set of projects is another cage
    assert await lab.call(plugin, "e.f") == {"text": "boats"}
    assert "failed" in await lab.call(plugin, "g.h")
    # A project without that directory is left out and harms nobody.
    await stage.load(declared, "bare", docs["bare"].parent)
    assert plugin.state is S.RUNNING
    assert await lab.call(plugin, "e.f") == {"text": "boats"}
    await stage.supervisor.unload_project("boats")
    assert "failed" in await lab.call(plugin, "e.f")
