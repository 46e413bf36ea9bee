"""What a killed daemon left under a temporary name goes; nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.workspace.stale_files import MAX_DEPTH, remove_stale_files

NO_PROCESS = 4_194_305  # above the highest number that Linux gives
LATER_S = 2e10
LEFT = f".kaged-tmp-{NO_PROCESS}-7"


def test_a_leftover_goes_wherever_it_lies(tmp_path: Path) -> None:
    places = [tmp_path, tmp_path / "a", tmp_path / "a" / ".hidden" / "b"]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / LEFT).write_text("half", encoding="utf-8")
        (place / "kept.txt").write_text("whole", encoding="utf-8")
    assert remove_stale_files(str(tmp_path), LATER_S) == 3
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["kept.txt"] * 3


@pytest.mark.parametrize(
    "name",
    [
        ".kaged-tmp-",
        ".kaged-tmp-notes.txt",
        f".kaged-tmp-{NO_PROCESS}-7.txt",
        f".kaged-tmp-{NO_PROCESS}-7\n",
        f".kaged-tmp-{NO_PROCESS}-x",
        f"x.kaged-tmp-{NO_PROCESS}-7",
        f".kaged-tmp-project.yaml-{NO_PROCESS}",
    ],
)
def test_a_file_with_nearly_such_a_name_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    assert remove_stale_files(str(tmp_path), LATER_S) == 0
    assert (tmp_path / name).exists()


def test_a_file_younger_than_the_daemon_stays(tmp_path: Path) -> None:
    left = tmp_path / LEFT
    left.write_text("half", encoding="utf-8")
    os.utime(left, (0, 0))  # what a program says about its age does not count
    assert remove_stale_files(str(tmp_path), left.stat().st_ctime - 1) == 0
    assert left.exists()


def test_a_file_of_another_daemon_that_runs_stays(tmp_path: Path) -> None:
    theirs = tmp_path / f".kaged-tmp-{os.getppid()}-0"
    earlier = tmp_path / f".kaged-tmp-{os.getpid()}-0"  # of one that had our number before
    for one in (theirs, earlier):
        one.write_text("half", encoding="utf-8")
    assert remove_stale_files(str(tmp_path), LATER_S) == 1
    assert theirs.exists()


def test_links_and_folders_with_such_a_name_stay_and_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / LEFT).write_text("elsewhere", encoding="utf-8")
    root = tmp_path / "root"
    root.mkdir()
    (root / LEFT).symlink_to(outside / LEFT)
    (root / "way").symlink_to(outside)
    (root / f".kaged-tmp-{NO_PROCESS}-8").mkdir()
    assert remove_stale_files(str(root), LATER_S) == 0
    assert (outside / LEFT).exists()
    assert (root / LEFT).is_symlink()


def test_a_folder_that_is_too_deep_or_gone_is_no_trouble(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH + 20))
    deep.mkdir(parents=True)
    (deep / LEFT).write_text("half", encoding="utf-8")
    assert remove_stale_files(str(tmp_path), LATER_S) == 0
    assert remove_stale_files(str(tmp_path / "nowhere"), LATER_S) == 0
