from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kaged.cage import base_programs
from kaged.cage.base_programs import (
    BASE_PROGRAMS,
    base_program_key,
    base_program_sources,
    build_base_programs,
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with three base programs, two of them one file under two names."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").write_text("#!shell", encoding="utf-8")
    (folder / "cat").write_text("multicall", encoding="utf-8")
    (folder / "ls").symlink_to("cat")
    (folder / "git").write_text("not base", encoding="utf-8")
    monkeypatch.setattr(base_programs, "_SOURCE_DIRS", (str(folder),))
    return folder


def test_a_folder_holds_the_base_programs_the_host_has_and_no_others(
    host: Path, tmp_path: Path
) -> None:
    found = build_base_programs(tmp_path / "cache")
    assert found.programs == ("sh", "cat", "ls")
    assert not found.session_program
    place = Path(found.path)
    assert sorted(one.name for one in (place / "bin").iterdir()) == ["cat", "ls", "sh"]
    assert (place / "bin/cat").samefile(place / "bin/ls")
    assert (place / "bin/sh").stat().st_mode & 0o7777 == 0o555
    assert not (place / "bin/sh").is_symlink()


def test_a_folder_is_made_once_and_again_when_a_program_changes(host: Path, tmp_path: Path) -> None:
    first = build_base_programs(tmp_path / "cache")
    stamp = Path(first.path).stat().st_mtime_ns
    assert build_base_programs(tmp_path / "cache") == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    (host / "sh").write_text("#!an upgraded shell", encoding="utf-8")
    second = build_base_programs(tmp_path / "cache")
    assert second.path != first.path
    assert (Path(second.path) / "bin/sh").read_text(encoding="utf-8") == "#!an upgraded shell"


def test_a_damaged_folder_is_made_again(host: Path, tmp_path: Path) -> None:
    found = build_base_programs(tmp_path / "cache")
    damaged = Path(found.path) / "bin/sh"
    damaged.chmod(0o700)
    damaged.write_text("", encoding="utf-8")
    assert build_base_programs(tmp_path / "cache") == found
    assert damaged.read_text(encoding="utf-8") == "#!shell"
    assert [one.name for one in (tmp_path / "cache").iterdir()] == [Path(found.path).name]


def test_a_folder_that_cannot_be_written_is_an_error(host: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    with pytest.raises(OSError, match="cache"):
        build_base_programs(tmp_path / "cache")


def test_the_cache_can_be_read_by_the_users_of_cages_whatever_the_umask_is(
    host: Path, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        found = build_base_programs(tmp_path / "cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o755
    assert stat.S_IMODE((Path(found.path) / "bin").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_cache_that_others_may_change_is_refused_even_with_programs_in_it(
    host: Path, tmp_path: Path, mode: int
) -> None:
    build_base_programs(tmp_path / "cache")
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(OSError, match="can be changed by other users"):
        build_base_programs(tmp_path / "cache")


def test_a_cache_of_somebody_else_is_refused(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_base_programs(tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="can be changed by other users"):
        build_base_programs(tmp_path / "cache")


def test_a_cache_that_is_a_link_is_refused(host: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        build_base_programs(tmp_path / "cache")
    assert list((tmp_path / "real").iterdir()) == []


def test_set_id_bits_are_not_copied(host: Path, tmp_path: Path) -> None:
    (host / "cat").chmod(0o6755)
    found = build_base_programs(tmp_path / "cache")
    assert (Path(found.path) / "bin/cat").stat().st_mode & 0o7000 == 0


def test_the_key_names_what_it_is_made_of(host: Path) -> None:
    first = base_program_key(base_program_sources())
    assert first == base_program_key(base_program_sources())
    (host / "cat").write_text("other", encoding="utf-8")
    assert base_program_key(base_program_sources()) != first


def test_the_base_set_is_env_sh_and_the_coreutils() -> None:
    assert {"env", "sh", "cat", "ls", "cp", "sort", "["} <= set(BASE_PROGRAMS)
    assert not {"git", "curl", "python3", "bash", "grep", "sed", "awk", "ssh", "su"} & set(
        BASE_PROGRAMS
    )
