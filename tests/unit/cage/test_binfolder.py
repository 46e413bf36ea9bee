from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.cage.binfolder import BinFolder, stock_bin_folder
from kaged.cage.errors import CageStartFailed


@pytest.fixture
def folder(tmp_path: Path) -> BinFolder:
    links = (("sh", "/kaged-base/bin/sh"), ("python3", "python3.11"))
    return BinFolder(str(tmp_path), links, ("python3.11",))


def content(folder: BinFolder) -> dict[str, str | int]:
    return {
        one.name: str(one.readlink()) if one.is_symlink() else one.stat().st_size
        for one in Path(folder.path).iterdir()
    }


WHOLE = {"sh": "/kaged-base/bin/sh", "python3": "python3.11", "python3.11": 0}


def test_the_directory_holds_the_links_and_an_empty_file_for_each_program(
    folder: BinFolder,
) -> None:
    stock_bin_folder(folder)
    assert content(folder) == WHOLE


def test_users_of_any_cage_can_read_it_whatever_the_umask_is(folder: BinFolder) -> None:
    before = os.umask(0o077)
    try:
        stock_bin_folder(folder)
    finally:
        os.umask(before)
    assert Path(folder.path).stat().st_mode & 0o777 == 0o755
    assert (Path(folder.path) / "python3.11").stat().st_mode & 0o777 == 0o444


def test_a_directory_that_is_there_already_is_left_alone(folder: BinFolder) -> None:
    stock_bin_folder(folder)
    before = Path(folder.path).stat().st_ino
    stock_bin_folder(folder)
    assert Path(folder.path).stat().st_ino == before


@pytest.mark.parametrize("damage", ["more", "less", "other"])
def test_a_damaged_directory_is_made_again(folder: BinFolder, damage: str) -> None:
    stock_bin_folder(folder)
    place = Path(folder.path)
    if damage == "more":
        (place / "evil").touch()
    else:
        (place / "sh").unlink()
    if damage == "other":
        (place / "sh").symlink_to("/tmp/evil")
    stock_bin_folder(folder)
    assert content(folder) == WHOLE
    assert [one.name for one in place.parent.iterdir()] == [place.name]


def test_a_cache_that_is_gone_is_a_start_that_failed(folder: BinFolder, tmp_path: Path) -> None:
    tmp_path.rmdir()
    with pytest.raises(CageStartFailed, match="could not be laid out"):
        stock_bin_folder(folder)
