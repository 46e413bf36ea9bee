"""The operator's commands against a running host: install, upgrade, enable, disable, uninstall."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.plugin_lab import BASE_MANIFEST, STUB, PluginLab
from kaged.plugins.errors import PluginNotFound
from kaged.plugins.installation import PluginStore
from kaged.plugins.installer import PluginInstaller
from kaged.plugins.states import PluginState
from kaged.plugins.supervisor import PluginSupervisor
from raising import raises_code
from requirements import requirement


class Host:
    """A host with an installer; `write` makes plugin directories to install from."""

    def __init__(self, lab: PluginLab, root: Path) -> None:
        self.lab = lab
        self.root = root
        self.local_toml = root / "conf" / "local.toml"
        self.config_toml = root / "conf" / "config.toml"
        (root / "conf").mkdir()
        (root / "home").mkdir(mode=0o700)
        self.dropped: list[str] = []
        self.installer = self.make()

    def make(self) -> PluginInstaller:
        parts = self.lab.parts
        store = PluginStore(
            self.root / "home" / "store",
            data_dir=self.root / "home" / "data",
            local_toml=self.local_toml,
            config_toml=self.config_toml,
            audit=parts.audit,
            clock=parts.clock,
            ids=parts.ids,
            tables=self,
        )
        self.supervisor = PluginSupervisor(parts)
        return PluginInstaller(store, self.supervisor)

    def tables_of(self, plugin: str) -> list[str]:
        return [f"plugin_{plugin}_t"]

    async def drop(self, plugin: str) -> list[str]:
        self.dropped.append(plugin)
        return [f"plugin_{plugin}_t"]

    async def hand_over(self, owner: str, heir: str) -> list[str]:
        raise AssertionError(f"nothing of {owner} is kept here, not even for {heir}")

    def write(self, version: str = "1.0.0", **fields: Any) -> Path:
        data = {**BASE_MANIFEST, "version": version, **fields}
        directory = self.root / f"src-{data['name']}-{version}"
        directory.mkdir()
        shutil.copy(STUB, directory / "main.py")
        answer = {"name": data["name"], "version": version, "methods": data["methods"]}
        (directory / "behaviour.json").write_text(json.dumps({"answer": answer}), encoding="utf-8")
        (directory / "kaged-plugin.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        return directory

    async def install(self, path: Path) -> tuple[str, ...]:
        prompt = await self.installer.preview(path)
        return (await self.installer.install(path, prompt.digest)).lines


@pytest.fixture
async def host(lab: PluginLab, tmp_path: Path) -> AsyncIterator[Host]:
    made = Host(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()


async def test_a_new_plugin_is_disabled_until_it_is_enabled(host: Host) -> None:
    lines = await host.install(host.write())
    assert lines == (
        "✓ Installed stub 1.0.0",
        "  → disabled; enable with: kaged plugin enable stub",
    )
    plugin = host.supervisor.get("stub")
    assert plugin.state is PluginState.DISABLED
    assert host.installer.store.enabled() == ()
    await host.installer.enable("stub")
    assert plugin.state is PluginState.RUNNING, plugin.note
    assert host.installer.store.enabled() == ("stub",)
    await host.installer.disable("stub")
    assert plugin.state is PluginState.DISABLED
    assert host.installer.store.enabled() == ()


@requirement("PH-SUP-39")
async def test_directories_with_manifests_are_registered_at_start(host: Host) -> None:
    for name in ("one", "two"):
        host.write(name=name).rename(_made(host.root / "home" / "store") / name)
    await host.installer.open()
    assert sorted(host.supervisor.plugins) == ["one", "two"]
    row, _ = host.supervisor.statuses()
    assert (row["name"], row["state"]) == ("one", "disabled")
    assert row["description"] == BASE_MANIFEST["description"]
    assert host.installer.store.enabled() == ()


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@requirement("PH-INST-24")
async def test_an_upgrade_restarts_what_runs_and_leaves_alone_what_does_not(host: Host) -> None:
    await host.install(host.write())
    await host.installer.enable("stub")
    plugin = host.supervisor.get("stub")
    assert plugin.state is PluginState.RUNNING, plugin.note
    assert plugin.conversation is not None
    pid = plugin.conversation.pid
    lines = await host.install(host.write("2.0.0"))
    assert lines == (
        "✓ Upgraded stub to 2.0.0",
        "  Plugin was running; restarting...",
        "✓ stub restarted",
    )
    assert plugin.state is PluginState.RUNNING
    assert plugin.conversation is not None
    assert plugin.conversation.pid != pid
    assert plugin.installed.version == "2.0.0"
    await host.installer.disable("stub")
    assert await host.install(host.write("3.0.0")) == ("✓ Upgraded stub to 3.0.0",)
    assert plugin.state is PluginState.DISABLED
    assert host.supervisor.get("stub").installed.version == "3.0.0"


@requirement("PH-INST-23")
async def test_without_the_yes_to_new_capabilities_the_old_version_stays(host: Host) -> None:
    await host.install(host.write())
    new = host.write("2.0.0", capabilities=["net:*"])
    prompt = await host.installer.preview(new)
    assert [line.text for line in prompt.added] == ["net:*"]
    old = host.installer.store.get("stub").digest
    assert old
    for answered in ("", old):
        with raises_code("plugin_consent_missing", match="stub are not the ones that were shown"):
            await host.installer.install(new, answered)
    assert host.installer.store.get("stub").version == "1.0.0"


async def test_uninstalling_asks_for_force_while_sessions_use_it(host: Host) -> None:
    await host.install(host.write())
    await host.installer.enable("stub")
    with raises_code("plugin_in_use") as caught:
        await host.installer.uninstall("stub", active_sessions=2)
    assert caught.value.message == (
        "Plugin stub is active in 2 session(s). Stop sessions first, or use --force."
    )
    assert host.supervisor.get("stub").state is PluginState.RUNNING
    assert (host.root / "home" / "store" / "stub").is_dir()
    outcome = await host.installer.uninstall("stub", force=True, active_sessions=2)
    assert outcome.lines == (
        "✓ Stopped stub",
        "✓ Removed plugin files",
        "✓ Removed local config entry",
    )
    assert not (host.root / "home" / "store" / "stub").exists()
    assert "stub" not in host.local_toml.read_text(encoding="utf-8")
    assert host.installer.store.enabled() == ()
    assert host.dropped == ["stub"]
    assert host.lab.processes() == []
    with pytest.raises(PluginNotFound):
        await host.installer.uninstall("stub")


@requirement("PH-MANI-27")
async def test_an_installed_manifest_that_became_invalid_is_told_at_start(host: Host) -> None:
    await host.install(host.write())
    await host.install(host.write(name="good"))
    (host.root / "home" / "store" / "stub" / "kaged-plugin.yaml").write_text(
        "x: 1\n", encoding="utf-8"
    )
    restarted = host.make()
    await restarted.open()
    assert sorted(host.supervisor.plugins) == ["good"]
    (problem,) = restarted.problems
    assert (problem.name, problem.state) == ("stub", "disabled (invalid manifest)")
    assert [(row["name"], row["state"]) for row in host.supervisor.statuses()] == [
        ("good", "disabled")
    ]
    with raises_code("plugin_store_failed", match="invalid manifest"):
        await restarted.enable("stub")
    (event,) = await host.lab.seen("plugin.disabled")
    assert (event[1]["name"], event[1]["reason"]) == ("stub", "invalid manifest")
    await restarted.uninstall("stub")
    assert restarted.problems == ()
