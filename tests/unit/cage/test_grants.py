from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.errors import GrantRefused, UnsafeArgument
from kaged.cage.grants import (
    MAX_GRANTS,
    GrantSet,
    Protected,
    open_grants,
    open_runtime_dirs,
)
from kaged.kernel.policy import CagePolicy, ExecGrant, FsGrant, FsMode, merge_grants

RO, RW = FsMode.RO, FsMode.RW


def opened(*grants: tuple[Path | str, FsMode], protected: Protected | None = None) -> GrantSet:
    return open_grants(
        [FsGrant(str(path), mode) for path, mode in grants], protected or Protected()
    )


def refused(path: Path | str, mode: FsMode = RO, protected: Protected | None = None) -> str:
    with pytest.raises(GrantRefused) as caught:
        opened((path, mode), protected=protected)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def descriptors() -> set[str]:
    return {one.name for one in Path("/proc/self/fd").iterdir()}


def test_a_directory_and_a_file_are_opened_and_described(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    grants = opened((tmp_path, RW), (tmp_path / "file", RO))
    folder, file = grants.grants
    assert (folder.is_dir, folder.mode, file.is_dir, file.mode) == (True, RW, False, RO)
    assert os.fstat(folder.fd).st_ino == tmp_path.stat().st_ino
    assert os.fstat(file.fd).st_ino == (tmp_path / "file").stat().st_ino
    grants.close()
    grants.close()


def test_the_descriptor_still_means_the_checked_directory_after_a_swap(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    inode = (tmp_path / "a").stat().st_ino
    grants = opened((tmp_path / "a", RO))
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to("/etc")
    assert os.fstat(grants.grants[0].fd).st_ino == inode
    grants.close()


def test_a_path_that_is_a_link_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    text = refused(tmp_path / "link")
    assert "symbolic link" in text
    assert "grant /etc" in text


def test_a_path_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    text = refused(tmp_path / "link/inner")
    assert str(tmp_path / "real/inner") in text


def test_a_link_that_only_leads_to_its_own_neighbour_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    refused(tmp_path / "link")


def test_a_missing_path_is_refused_by_name(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "missing/deeper")
    (tmp_path / "file").touch()
    assert "no such file" in refused(tmp_path / "file/below")


def test_sockets_and_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    for name in ("pipe", "socket"):
        assert "neither a directory nor a plain file" in refused(tmp_path / name)


@pytest.mark.parametrize(
    "path", ["/", "/proc", "/proc/self", "/sys", "/sys/fs", "/dev", "/dev/shm", "/run", "/tmp"]
)
@pytest.mark.parametrize("mode", [RO, RW])
def test_the_kernels_trees_and_the_cages_own_places_are_refused(path: str, mode: FsMode) -> None:
    refused(path, mode)


@pytest.mark.parametrize("path", ["/usr", "/usr/lib", "/etc", "/usr/bin/env"])
def test_the_systems_own_directories_are_never_writable(path: str) -> None:
    assert "never writable" in refused(path, RW)
    opened((path, RO)).close()


@pytest.mark.parametrize(
    "path", ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/boot"]
)
@pytest.mark.parametrize("below", ["", "/x"])
def test_no_system_tree_nor_anything_in_it_is_writable(path: str, below: str) -> None:
    assert "never writable" in refused(f"{path}{below}", RW)


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a\0b", "/a\nb", "/a/"])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(UnsafeArgument):
        opened((path, RO))


def test_what_belongs_to_the_daemon_can_never_be_granted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "plugins/one").mkdir(parents=True)
    (home / "db").touch()
    protected = Protected(paths=(str(home), str(home / "db")))
    for path in (home, home / "db", home / "plugins", home / "plugins/one", tmp_path):
        assert "database, configuration" in refused(path, protected=protected)
    (tmp_path / "homework").mkdir()
    opened((tmp_path / "homework", RW), protected=protected).close()


def test_an_owner_may_have_its_own_directory_and_nobody_elses(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("plugins/one/data", "plugins/two", "config/one"):
        (home / name).mkdir(parents=True)
    protected = Protected(
        paths=(str(home), str(home / "plugins/two")),
        own=(str(home / "plugins/one"), str(home / "config/one")),
    )
    for name in ("plugins/one", "plugins/one/data", "config/one"):
        opened((home / name, RO), protected=protected).close()
    for name in ("plugins/two", "plugins", "config", ""):
        refused(home / name, protected=protected)


def test_an_own_directory_that_holds_something_protected_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own/token").mkdir(parents=True)
    protected = Protected(paths=(str(tmp_path / "own/token"),), own=(str(tmp_path / "own"),))
    refused(tmp_path / "own", protected=protected)


def test_an_own_directory_that_is_itself_listed_is_allowed(tmp_path: Path) -> None:
    protected = Protected(paths=(str(tmp_path),), own=(str(tmp_path),))
    opened((tmp_path, RO), protected=protected).close()


def test_another_name_of_a_protected_directory_is_refused(tmp_path: Path) -> None:
    """A bind mount has another path and the same inode; hard-linked files stand in for it here."""
    (tmp_path / "db").touch()
    os.link(tmp_path / "db", tmp_path / "alias")
    protected = Protected(paths=(str(tmp_path / "db"),))
    assert "another name" in refused(tmp_path / "alias", protected=protected)


def test_nothing_stays_open_when_one_grant_is_refused(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(GrantRefused):
        opened((tmp_path, RO), (tmp_path / "missing", RO))
    with pytest.raises(GrantRefused):
        open_runtime_dirs([str(tmp_path), str(tmp_path / "missing")], Protected())
    assert descriptors() == before


def test_a_cage_takes_a_limited_number_of_paths(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(GrantRefused, match="takes"):
        opened(*[(tmp_path, RO)] * (MAX_GRANTS + 1))
    assert descriptors() == before


def test_a_runtime_may_lie_in_the_daemons_home_but_not_contain_it(tmp_path: Path) -> None:
    (tmp_path / "home/venv").mkdir(parents=True)
    protected = Protected(paths=(str(tmp_path / "home"),))
    open_runtime_dirs([str(tmp_path / "home/venv")], protected).close()
    with pytest.raises(GrantRefused):
        open_runtime_dirs([str(tmp_path)], protected)


def test_read_and_write_on_one_path_is_one_writable_grant() -> None:
    policy = CagePolicy(fs=(FsGrant("/a", RO), FsGrant("/a", RW), FsGrant("/a", RO)))
    assert merge_grants(policy) == (FsGrant("/a", RW),)


def test_the_directory_of_an_exec_entry_is_shown_read_only_unless_a_path_covers_it() -> None:
    policy = CagePolicy(
        fs=(FsGrant("/a", RW),),
        exec=(ExecGrant("git", "/a/b"), ExecGrant("git", "/c"), ExecGrant("bash", "/c")),
    )
    assert merge_grants(policy) == (FsGrant("/a", RW), FsGrant("/c", RO))


NAMES = st.sampled_from(["a", "b", "ab", "a b"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(path=PATHS, protected=st.lists(PATHS, max_size=4), own=st.lists(PATHS, max_size=2))
def test_protection_is_decided_on_whole_names(
    path: str, protected: list[str], own: list[str]
) -> None:
    def parts(text: str) -> list[str]:
        return text.split("/")[1:]

    def within(inner: str, outer: str) -> bool:
        return parts(inner)[: len(parts(outer))] == parts(outer)

    reason = Protected(tuple(protected), tuple(own)).reason(path)
    related = [one for one in protected if within(one, path) or within(path, one)]
    if not related:
        assert reason is None
    if related and not any(within(path, one) for one in own):
        assert reason is not None
