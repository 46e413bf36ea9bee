"""The store on disk: install, upgrade, uninstall, discover, and what failures leave behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.store_lab import StoreLab, tree, write_plugin
from kaged.base import KagedError
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins import treecopy
from kaged.plugins.errors import PluginNotFound
from kaged.plugins.prompt import Change
from kaged.plugins.storereader import Trouble
from raising import raises_code
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[StoreLab]:
    made = StoreLab(tmp_path / "home")
    made.root.mkdir()
    await made.open()
    yield made
    await made.close()


@requirement("PH-INST-07", "PH-INST-08", "PH-INST-10")
async def test_installing_copies_the_directory_and_writes_the_entry(
    lab: StoreLab, tmp_path: Path
) -> None:
    lab.local_toml.write_text("# mine\n[models.a]\nmodel = 'scripted'  # keep\n", encoding="utf-8")
    lab.local_toml.chmod(0o600)
    source = write_plugin(tmp_path / "src", {"lib/a.txt": "a", "run.sh": "x"})
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("lib/a.txt")
    await lab.install(source)
    target = lab.directory / "sample"
    assert tree(target) == tree(source)
    assert (target / "link").readlink() == Path("lib/a.txt")
    assert os.access(target / "run.sh", os.X_OK)
    assert lab.local().startswith("# mine\n[models.a]\nmodel = 'scripted'  # keep\n")
    assert '[plugins.sample]\ninstalled = "1.0.0"\nlocal = true' in lab.local()
    (event,) = await lab.seen("plugin.installed")
    assert event[1] == {
        "name": "sample",
        "version": "1.0.0",
        "source": str(source),
        "local": True,
        "capabilities": ["read:fs:/opt/sample"],
    }
    assert lab.stale_files() == []


@requirement("PH-MANI-26", "PH-INST-03", "PH-INST-04", "PH-MANI-01")
@pytest.mark.parametrize("fault", ["missing", "nameless"])
async def test_an_invalid_manifest_changes_nothing(
    lab: StoreLab, tmp_path: Path, fault: str
) -> None:
    source = write_plugin(tmp_path / "src", name=None)
    if fault == "missing":
        (source / "kaged-plugin.yaml").unlink()
    with pytest.raises(ConfigFileInvalid) as caught:
        await lab.store.install(source, "whatever")
    assert "kaged-plugin.yaml" in str(caught.value)
    assert lab.names() == []
    assert lab.local() == ""
    assert await lab.seen() == []


async def test_a_reserved_name_is_refused_by_its_own_code(lab: StoreLab, tmp_path: Path) -> None:
    with raises_code("reserved_plugin_name"):
        await lab.store.prepare(write_plugin(tmp_path / "src", name="shell"))


@requirement("PH-INST-02")
async def test_without_the_digest_that_was_shown_nothing_is_installed(
    lab: StoreLab, tmp_path: Path
) -> None:
    source = write_plugin(tmp_path / "src")
    prompt = await lab.store.prepare(source)
    assert lab.names() == []
    assert not lab.directory.exists()
    (source / "main.py").write_text("something else", encoding="utf-8")
    with raises_code("plugin_consent_missing"):
        await lab.store.install(source, prompt.digest)
    assert lab.names() == []
    assert lab.local() == ""


@requirement("PH-MANI-03", "PH-INST-05")
async def test_the_same_name_is_an_upgrade_a_downgrade_or_refused(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "one", version="1.0.0"))
    with raises_code("plugin_already_installed"):
        await lab.store.prepare(write_plugin(tmp_path / "same", {"x": "y"}, version="1.0.0"))
    two = write_plugin(tmp_path / "two", version="2.0.0")
    assert (await lab.store.prepare(two)).change is Change.UPGRADE
    await lab.install(two)
    down = await lab.store.prepare(tmp_path / "one")
    assert down.change is Change.DOWNGRADE
    assert down.question == "Downgrade sample 2.0.0 → 1.0.0? [y/N]"
    assert lab.names() == ["sample"]
    assert lab.store.get("sample").version == "2.0.0"


@requirement("PH-INST-25", "PH-BEY-15")
async def test_an_upgrade_is_audited_with_its_capability_diff(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "one", capabilities=["read:fs:/a/b", "net:h:1"]))
    two = write_plugin(tmp_path / "two", version="1.1.0", capabilities=["read:fs:/a"])
    prompt = await lab.store.prepare(two)
    assert [(line.text, line.widening) for line in prompt.added] == [("read:fs:/a", True)]
    assert any("+ read:fs:/a" in line and "WIDENS" in line for line in prompt.lines())
    await lab.install(two)
    (event,) = await lab.seen("plugin.upgraded")
    assert event[1] == {
        "name": "sample",
        "source": str(two),
        "old_version": "1.0.0",
        "new_version": "1.1.0",
        "capability_diff": {
            "added": ["read:fs:/a"],
            "removed": ["read:fs:/a/b", "net:h:1"],
            "widens": True,
        },
    }
    assert tree(lab.directory / "sample") == tree(two)
    assert 'installed = "1.1.0"' in lab.local()


@requirement("PH-INST-31")
@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
async def test_a_copy_that_fails_half_way_leaves_the_old_state(
    lab: StoreLab, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == "2.0.0":
        await lab.install(write_plugin(tmp_path / "old"))
    before = (lab.names(), lab.local())
    source = write_plugin(tmp_path / "src", {"a": "1", "b": "2", "c": "3"}, version=version)
    prompt = await lab.store.prepare(source)
    written: list[bytes] = []

    def full(handle: int, data: bytes) -> None:
        written.append(data)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        os.write(handle, data)

    monkeypatch.setattr(treecopy, "_write_all", full)
    with raises_code("plugin_store_failed", match="No space left"):
        await lab.store.install(source, prompt.digest)
    assert (lab.names(), lab.local()) == before
    assert lab.stale_files() == []
    if version == "2.0.0":
        assert tree(lab.directory / "sample") == tree(tmp_path / "old")


@pytest.mark.parametrize("operation", ["install", "upgrade", "uninstall"])
async def test_a_change_the_audit_log_cannot_take_is_taken_back(
    lab: StoreLab, tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_plugin(tmp_path / "old")
    if operation != "install":
        await lab.install(old)
    lab_before = (lab.names(), lab.local())
    new = write_plugin(tmp_path / "new", version="3.0.0")
    prompt = await lab.store.prepare(new)

    async def refuse(*_: object, **__: object) -> None:
        raise KagedError("the audit log is full", code="plugin_store_failed")

    monkeypatch.setattr(lab.audit, "record", refuse)
    store = lab.store
    removing = operation == "uninstall"
    with raises_code("plugin_store_failed", match="audit log is full"):
        await (store.uninstall("sample") if removing else store.install(new, prompt.digest))
    assert (lab.names(), lab.local()) == lab_before
    assert lab.store.discover().problems == ()
    assert lab.stale_files() == []


@requirement("PH-INST-28", "PH-AMB-54")
async def test_enable_edits_one_file_install_the_other_and_uninstall_both(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "src"))
    assert not lab.config_toml.exists()
    local = lab.local()
    text = '# hands off\n[plugins]\nenabled = ["other"] # why\n'
    lab.config_toml.write_text(text, encoding="utf-8")
    assert await lab.store.set_enabled("sample", enabled=True)
    assert lab.store.enabled() == ("other", "sample")
    assert lab.local() == local
    changed = lab.config_toml.read_text(encoding="utf-8")
    assert changed == text.replace('["other"]', '["other", "sample"]')
    await lab.store.uninstall("sample")
    assert lab.config_toml.read_text(encoding="utf-8") == text
    assert "sample" not in lab.local()
    assert lab.names() == []
    assert lab.stale_files() == []
    (event,) = await lab.seen("plugin.uninstalled")
    assert event[1] == {"name": "sample", "version": "1.0.0"}


async def test_what_is_not_installed_cannot_be_enabled_or_removed(lab: StoreLab) -> None:
    for name in ("nobody", "../home", ".kaged"):
        with pytest.raises(PluginNotFound):
            await lab.store.set_enabled(name, enabled=True)
        with pytest.raises(PluginNotFound):
            await lab.store.uninstall(name)


async def test_directories_with_manifests_are_discovered(lab: StoreLab) -> None:
    for name in ("one", "two"):
        write_plugin(lab.directory / name, name=name)
    (lab.directory / "stray-file").write_text("", encoding="utf-8")
    found = await lab.store.open()
    assert [plugin.name for plugin in found.plugins] == ["one", "two"]
    assert found.problems == ()


async def test_a_manifest_that_became_invalid_disables_its_plugin_only(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "a", name="good"))
    await lab.install(write_plugin(tmp_path / "b", name="bad"))
    (lab.directory / "bad" / "kaged-plugin.yaml").write_text("name: bad\n", encoding="utf-8")
    found = await lab.store.open()
    assert [plugin.name for plugin in found.plugins] == ["good"]
    assert [problem.state for problem in found.problems] == ["disabled (invalid manifest)"]
    (event,) = await lab.seen("plugin.disabled")
    assert event[1]["name"] == "bad"
    assert event[1]["reason"] == "invalid manifest"


@requirement("PH-BEY-07")
async def test_changed_files_or_capabilities_need_a_new_yes(lab: StoreLab, tmp_path: Path) -> None:
    await lab.install(write_plugin(tmp_path / "src"))
    target = lab.directory / "sample"
    write_plugin(target, capabilities=["read:fs:/opt/sample", "net:*"])
    (problem,) = lab.store.discover().problems
    assert problem.trouble is Trouble.CONSENT_NEEDED
    assert "net:*" in problem.detail
    with raises_code("plugin_files_changed"):
        await lab.store.set_enabled("sample", enabled=True)
    prompt = await lab.store.prepare_approval("sample")
    assert [line.text for line in prompt.added] == ["net:*"]
    with raises_code("plugin_consent_missing"):
        await lab.store.approve("sample", "another digest")
    await lab.store.approve("sample", prompt.digest)
    assert lab.store.discover().problems == ()
    (target / "main.py").write_text("changed", encoding="utf-8")
    (problem,) = lab.store.discover().problems
    assert "files were changed" in problem.detail


async def test_a_lost_record_of_consent_disables_an_installed_plugin(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "src"))
    (lab.directory / ".kaged" / "pins" / "sample.json").unlink()
    assert [p.trouble for p in lab.store.discover().problems] == [Trouble.CONSENT_NEEDED]


@requirement("PH-INST-16")
async def test_a_plugin_of_a_project_is_for_that_project_alone(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "a", name="shared"))
    await lab.install(write_plugin(tmp_path / "b", name="own"), project_id="p1")
    assert 'installed = "1.0.0"\nlocal = false' in lab.local()
    shared, own = lab.store.get("shared"), lab.store.get("own")
    assert lab.store.may_use("p2", shared)
    assert lab.store.may_use("p1", own)
    assert not lab.store.may_use("p2", own)
    await lab.store.allow_project("own", "p2")
    assert lab.store.may_use("p2", own)


async def test_the_scoped_package_of_local_toml_is_found_again(
    lab: StoreLab, tmp_path: Path
) -> None:
    lab.local_toml.write_text(
        '[plugins."@scope/sample"]\ngrants = ["read:fs:/srv"]\napi_token = "x"\n', encoding="utf-8"
    )
    lab.local_toml.chmod(0o600)
    await lab.install(write_plugin(tmp_path / "src"))
    found = lab.store.get("sample")
    assert found.package == "@scope/sample"
    assert found.grants.texts == ("read:fs:/srv",)
    prompt = await lab.store.prepare_approval("sample")
    assert prompt.name == "sample"


async def test_git_data_is_left_out_and_a_store_is_not_copied_into_itself(
    lab: StoreLab, tmp_path: Path
) -> None:
    source = write_plugin(tmp_path / "src", {".git/config": "x", "sub/.git": "kept"})
    await lab.install(source)
    assert not (lab.directory / "sample" / ".git").exists()
    assert (lab.directory / "sample" / "sub" / ".git").exists()
    with raises_code("plugin_store_failed", match="store itself"):
        await lab.store.prepare(write_plugin(lab.root, name="outer"))
