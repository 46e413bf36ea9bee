from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kaged.cage.facts import HostFacts
from kaged.cage.grants import OpenGrant
from kaged.cage.identity import UID_BASE, IdentityKind, IdentityMode, choose_identity
from kaged.kernel.policy import FsMode


@pytest.fixture
def root(facts: HostFacts) -> HostFacts:
    return replace(facts, uid=0, gid=0)


def grant(path: str, mode: FsMode, owner: int) -> OpenGrant:
    return OpenGrant(
        path, mode, is_dir=True, fd=-1, owner_uid=owner, owner_gid=owner, permissions=0o755
    )


def test_an_ordinary_daemon_has_no_choice(facts: HostFacts) -> None:
    found = choose_identity(facts, IdentityMode.AUTO, (), (), 7)
    assert (found.kind, found.uid, found.switches) == (IdentityKind.DAEMON_USER, 1001, False)


def test_a_root_daemon_gives_each_cage_a_user_apart(root: HostFacts) -> None:
    found = [choose_identity(root, IdentityMode.AUTO, (), ("/usr",), slot) for slot in (1, 2)]
    assert [one.uid for one in found] == [UID_BASE + 1, UID_BASE + 2]
    assert all(one.switches for one in found)


def test_a_cage_with_writable_paths_runs_as_their_owner(root: HostFacts) -> None:
    held = (grant("/usr/share", FsMode.RW, 1234), grant("/usr/lib", FsMode.RO, 0))
    found = choose_identity(root, IdentityMode.AUTO, held, (), 1)
    assert (found.kind, found.uid) == (IdentityKind.SEPARATE_USER, 1234)


def test_writable_paths_of_root_or_of_two_owners_make_the_fallback(root: HostFacts) -> None:
    for owners in ((0, 0), (1234, 1235)):
        held = tuple(
            grant(path, FsMode.RW, owner)
            for path, owner in zip(("/usr/share", "/usr/lib"), owners, strict=True)
        )
        found = choose_identity(root, IdentityMode.AUTO, held, (), 1)
        assert found.kind is IdentityKind.ROOT_SHOWN_AS_USER
        assert found.why


def test_a_writable_directory_that_is_no_grant_counts_too(root: HostFacts, tmp_path: Path) -> None:
    found = choose_identity(root, IdentityMode.AUTO, (), (), 1, (str(tmp_path),))
    assert found.uid in {os.geteuid(), 0}
    assert found.uid < UID_BASE


def test_a_path_that_a_user_apart_cannot_reach_makes_the_fallback(
    root: HostFacts, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    found = choose_identity(root, IdentityMode.AUTO, (), (str(tmp_path),), 1)
    assert found.kind is IdentityKind.ROOT_SHOWN_AS_USER
    assert "cannot reach" in found.why
    missing = choose_identity(root, IdentityMode.AUTO, (), ("/usr/none",), 1)
    assert missing.kind is IdentityKind.ROOT_SHOWN_AS_USER


def test_the_operator_may_choose_root_and_a_host_may_lack_the_tool(root: HostFacts) -> None:
    for found in (
        choose_identity(root, IdentityMode.ROOT, (), (), 1),
        choose_identity(replace(root, setpriv=None), IdentityMode.AUTO, (), (), 1),
    ):
        assert found.kind is IdentityKind.ROOT_SHOWN_AS_USER
