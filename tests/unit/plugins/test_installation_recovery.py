"""What the store does with a journal that it finds, good or bad."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.store_lab import StoreLab, tree, write_plugin
from kaged.plugins.journal import Pin, read_json
from kaged.plugins.storereader import Trouble
from kaged.plugins.storesteps import StoreSteps
from kaged.plugins.treecopy import copy_tree
from raising import raises_code


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[StoreLab]:
    made = StoreLab(tmp_path / "home")
    made.root.mkdir()
    await made.open()
    yield made
    await made.close()


def interrupted_upgrade(lab: StoreLab, source: Path, **changes: Any) -> Path:
    """Leave the store as a crash right after the journal was written does."""
    steps = StoreSteps(lab.directory, lab.root / "data", lab.local_toml, lab.config_toml)
    facts = copy_tree(source, steps.staged("copy_1"))
    entry = {
        "format": 1,
        "operation": "upgrade",
        "name": "sample",
        "token": "copy_1",
        "version": "2.0.0",
        "local": True,
        "pin": Pin("sample", "2.0.0", facts.digest, ("read:fs:/opt/sample",)).as_json(),
        "event": "plugin.upgraded",
        "event_data": {
            "name": "sample",
            "old_version": "1.0.0",
            "new_version": "2.0.0",
            "capability_diff": {},
        },
        **changes,
    }
    path = lab.directory / ".kaged" / "journal.json"
    path.write_text(json.dumps(entry), encoding="utf-8")
    return path


async def test_an_interrupted_upgrade_is_finished_and_audited(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "old"))
    new = write_plugin(tmp_path / "new", {"more": "x"}, version="2.0.0")
    interrupted_upgrade(lab, new)
    found = await lab.store.open()
    assert [plugin.version for plugin in found.plugins] == ["2.0.0"]
    assert tree(lab.directory / "sample") == tree(new)
    assert len(await lab.seen("plugin.upgraded")) == 1
    assert lab.stale_files() == []


async def test_what_cannot_be_finished_now_keeps_its_plugin_out_of_use(
    lab: StoreLab, tmp_path: Path
) -> None:
    await lab.install(write_plugin(tmp_path / "old"))
    interrupted_upgrade(lab, write_plugin(tmp_path / "new", version="2.0.0"))
    lab.local_toml.chmod(0o644)  # a file with secrets that others may read is not touched
    assert await lab.store.recover() is None
    lab.local_toml.chmod(0o600)
    (problem,) = lab.store.discover().problems
    assert problem.trouble is Trouble.UNFINISHED
    found = await lab.store.open()
    assert [plugin.version for plugin in found.plugins] == ["2.0.0"]


async def test_the_next_change_finishes_the_one_before(lab: StoreLab, tmp_path: Path) -> None:
    await lab.install(write_plugin(tmp_path / "old"))
    interrupted_upgrade(lab, write_plugin(tmp_path / "new", version="2.0.0"))
    await lab.install(write_plugin(tmp_path / "other", name="other"))
    assert lab.store.get("sample").version == "2.0.0"
    assert lab.names() == ["other", "sample"]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../victim"},
        {"name": "a/b"},
        {"name": ".kaged"},
        {"name": 7},
        {"token": "../../victim"},
        {"operation": "explode"},
        {"format": 99},
        {"pin": {"name": "sample"}},
    ],
)
async def test_a_journal_that_makes_no_sense_moves_nothing(
    lab: StoreLab, tmp_path: Path, changes: dict[str, Any]
) -> None:
    await lab.install(write_plugin(tmp_path / "old"))
    (tmp_path / "victim").mkdir()
    path = interrupted_upgrade(lab, write_plugin(tmp_path / "new", version="2.0.0"), **changes)
    assert await lab.store.recover() is None
    assert path.exists()
    assert (tmp_path / "victim").is_dir()
    assert tree(lab.directory / "sample") == tree(tmp_path / "old")
    with raises_code("plugin_store_failed", match="cannot be finished"):
        await lab.store.uninstall("sample")


async def test_two_programs_do_not_change_the_store_at_once(lab: StoreLab, tmp_path: Path) -> None:
    other = StoreSteps(lab.directory, lab.root / "data", lab.local_toml, lab.config_toml)
    source = write_plugin(tmp_path / "src")
    prompt = await lab.store.prepare(source)
    with other.locked(), raises_code("plugin_store_failed", match="another program"):
        await lab.store.install(source, prompt.digest)
    await lab.store.install(source, prompt.digest)


def test_files_of_the_store_are_not_read_through_links_or_without_end(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="symbolic links"):
        read_json(tmp_path / "link")
    (tmp_path / "big").write_bytes(b" " * (5 * 1024 * 1024))
    with pytest.raises(ValueError, match="too large"):
        read_json(tmp_path / "big")
    assert read_json(tmp_path / "none") is None
    for data in (None, [], {"name": 1}, {"name": "a", "version": "1", "digest": "d"}):
        with pytest.raises(ValueError, match="no record of consent"):
            Pin.from_json(data)
