"""Scaffolded plugins in real cages: they pass the check, their own test, and answer calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.plugin_lab import PluginLab
from fakes.runtimes import node
from kaged.config.manifest import load_manifest
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.lint import check_plugin
from kaged.plugins.scaffold import Language, new_plugin
from kaged.plugins.states import PluginState

OWN_TEST = {
    Language.PYTHON: (sys.executable, "test_plugin.py"),
    Language.NODE: ("node", "--test"),
    Language.BASH: ("bash", "test.sh"),
}


@pytest.mark.parametrize("language", list(Language))
async def test_a_new_plugin_passes_the_check_and_its_own_test(
    lab: PluginLab, tmp_path: Path, language: Language
) -> None:
    runtimes = {"node": node()} if language is Language.NODE else {}
    made = new_plugin(tmp_path / "hello", "hello-world", language)
    report = await check_plugin(made.directory, lab.spawner, runtimes=runtimes)
    assert report.problems == ()
    assert report.ok
    assert report.shook_hands is True
    done = subprocess.run(
        OWN_TEST[language],
        cwd=made.directory,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("language", list(Language))
async def test_a_new_plugin_answers_in_its_cage(tmp_path: Path, language: Language) -> None:
    runtimes = {"node": node()} if language is Language.NODE else {}
    lab = PluginLab(tmp_path, runtimes=runtimes)
    await lab.open()
    try:
        made = new_plugin(tmp_path / "plugins" / "hello", "hello", language)
        manifest = load_manifest(made.directory).value
        plugin = lab.plugin(
            InstalledPlugin(made.directory, tmp_path / "data", manifest, manifest.name)
        )
        await plugin.start()
        assert plugin.state is PluginState.RUNNING, plugin.note
        config = plugin.schemas.merged({"greeting": "Good morning"}, {})
        answer = await plugin.call_tool("greet", {"name": "Ada"}, lab.context(), config)
        assert answer == {"text": "Good morning, Ada!"}
        assert await lab.call(plugin, "greeting.get") == {"greeting": "Good morning"}
    finally:
        await lab.close()
