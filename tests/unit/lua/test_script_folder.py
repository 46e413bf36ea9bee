"""Which files become scripts, and in which order."""

from __future__ import annotations

from pathlib import Path

from kaged.lua.folder import read_folders
from kaged.lua.limits import MAX_SOURCE_BYTES


def test_files_are_read_in_order_and_only_directly_in_the_folder(tmp_path: Path) -> None:
    for name in ("b.lua", "a.lua", "c.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.lua").write_text("x", encoding="utf-8")
    found = read_folders([tmp_path])
    assert [one.stem for one in found.scripts] == ["a", "b"]
    assert read_folders([tmp_path / "missing"]).scripts == ()


def test_reserved_names_large_files_and_unlisted_ones_are_told(tmp_path: Path) -> None:
    (tmp_path / "@mine.lua").write_text("x", encoding="utf-8")
    (tmp_path / "big.lua").write_bytes(b"x" * (MAX_SOURCE_BYTES + 1))
    (tmp_path / "ok.lua").write_bytes(b"-- \xff")
    found = read_folders([tmp_path])
    assert [one.stem for one in found.scripts] == ["ok"]
    assert len(found.failed) == 2
    listed = read_folders([tmp_path], ["ok"])
    assert sorted(listed.skipped) == ["@mine", "big"]
