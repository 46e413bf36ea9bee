from __future__ import annotations

import pytest
from hypothesis import assume, given

from kaged.kernel.capabilities import (
    CapabilityBases,
    CapabilityInvalid,
    CapabilityPath,
    CapabilitySet,
    PathBase,
    cage_policy,
    parse_capabilities,
    project_paths,
)
from kaged.kernel.paths import AbsPath, PathInvalid
from kaged.kernel.permissions import compile_policy
from kaged.kernel.policy import CageLimits, CagePolicy, ExecGrant, FsGrant, FsMode
from requirements import requirement
from unit.kernel.strategies import capability_sets, patiently, small_paths

HOME = "/kaged/plugins/memory"
BASES = CapabilityBases(config="/kaged/config/memory", projects=("/p/one", "/p/two/"))


def policy(*caps: object, bases: CapabilityBases = BASES) -> CagePolicy:
    return cage_policy(parse_capabilities(list(caps)), HOME, bases)


@requirement("PH-CAGE-02")
def test_the_install_directory_comes_first_and_read_only() -> None:
    assert policy().fs == (FsGrant(HOME, FsMode.RO),)
    assert policy("write:fs:/x", "read:fs:/y").fs[0] == FsGrant(HOME, FsMode.RO)
    assert policy(f"read:fs:{HOME}").fs == (FsGrant(HOME, FsMode.RO),)
    # Wider write access does not reach it: the narrower entry stays.
    assert policy("write:fs:/kaged/plugins").fs[0] == FsGrant(HOME, FsMode.RO)


@pytest.mark.parametrize("path", [HOME, HOME + "/data"])
def test_the_install_directory_cannot_be_made_writable(path: str) -> None:
    with pytest.raises(CapabilityInvalid, match="read-only"):
        policy(f"write:fs:{path}")


@requirement("PH-CAGE-03")
def test_read_becomes_ro_and_write_becomes_rw_at_the_same_path() -> None:
    assert policy("read:fs:/opt/a", "write:fs:/opt/b").fs[1:] == (
        FsGrant("/opt/a", FsMode.RO),
        FsGrant("/opt/b", FsMode.RW),
    )


def test_reading_and_writing_one_path_gives_one_rw_entry() -> None:
    memory = FsGrant("/kaged/config/memory/memory", FsMode.RW)

    assert policy("read:fs:config:/memory", "write:fs:config:/memory").fs[1:] == (memory,)
    assert policy("write:fs:config:/memory", "read:fs:config:/memory").fs[1:] == (memory,)


def test_a_narrower_read_inside_a_wider_write_stays_read_only() -> None:
    compiled = compile_policy(policy("read:fs:/a/b", "write:fs:/a"))

    assert compiled.mode_at("/a/x") is FsMode.RW
    assert compiled.mode_at("/a/b/c") is FsMode.RO


@requirement("PH-CAGE-04")
@pytest.mark.parametrize(
    ("caps", "allow"),
    [
        (["net:api.test:443", "net:h:*"], ["api.test:443", "h:*"]),
        (["net:[]"], []),
        ([], []),
        (["net:*"], ["*"]),
    ],
)
def test_net_entries_become_the_allow_list(caps: list[str], allow: list[str]) -> None:
    assert [target.text for target in policy(*caps).net] == allow


@requirement("PH-CAP-07")
def test_no_network_gives_an_empty_allow_list() -> None:
    assert policy("net:[]", "read:fs:/x").net == ()
    assert policy({"net": []}).net == ()


@requirement("PH-CAGE-05")
def test_exec_entries_become_pairs_of_binary_and_directory() -> None:
    assert policy("exec:bash:/opt/x", "exec:git:config:/r").exec == (
        ExecGrant("bash", "/opt/x"),
        ExecGrant("git", "/kaged/config/memory/r"),
    )
    # Working somewhere is not mounting it: the cage shows the directory read-only by itself.
    assert policy("exec:bash:/opt/x").fs == (FsGrant(HOME, FsMode.RO),)


def test_state_and_seccomp_are_never_anything_but_the_strict_ones() -> None:
    made = policy("write:fs:/x", "net:*", "kaged:storage:write")

    assert made.state == "ephemeral"
    assert made.seccomp == "default"
    assert made.capabilities == frozenset()
    assert made.env == ()


@requirement("PH-CAGE-08")
def test_the_limits_have_the_documented_defaults() -> None:
    limits = policy().limits

    assert limits.memory_mb == 512
    assert limits.cpu_shares == 256
    assert limits.pids == 100
    assert limits.walltime_sec == 0


def test_limits_can_be_given() -> None:
    limits = CageLimits(memory_mb=64)

    assert cage_policy(CapabilitySet(), HOME, BASES, limits).limits is limits


def test_project_paths_stand_for_that_path_in_each_project() -> None:
    caps = ["read:fs:project:/docs", "exec:git:project:/"]
    made = policy(*caps)

    assert made.fs[1:] == (
        FsGrant("/p/one/docs", FsMode.RO),
        FsGrant("/p/two/docs", FsMode.RO),
    )
    assert made.exec == (ExecGrant("git", "/p/one"), ExecGrant("git", "/p/two"))
    assert project_paths(parse_capabilities([*caps, "net:*", "read:fs:/x"]), BASES) == (
        "/p/one/docs",
        "/p/two/docs",
        "/p/one",
        "/p/two",
    )


def test_without_a_project_project_paths_stand_for_nothing() -> None:
    made = policy("read:fs:project:/docs", bases=CapabilityBases(config="/c"))

    assert made.fs == (FsGrant(HOME, FsMode.RO),)


def test_a_project_without_that_directory_is_left_out() -> None:
    bases = CapabilityBases("/c", ("/p/one", "/p/two"), absent=frozenset({"/p/one/docs"}))

    assert policy("read:fs:project:/docs", bases=bases).fs[1:] == (
        FsGrant("/p/two/docs", FsMode.RO),
    )


@pytest.mark.parametrize("bad", ["", "relative", "/a/../b"])
def test_facts_that_are_no_absolute_paths_are_refused(bad: str) -> None:
    with pytest.raises(PathInvalid):
        cage_policy(CapabilitySet(), bad, BASES)
    with pytest.raises(PathInvalid):
        policy("read:fs:config:/x", bases=CapabilityBases(bad))
    with pytest.raises(PathInvalid):
        policy("read:fs:project:/x", bases=CapabilityBases("/c", (bad,)))


@patiently
@given(capability_sets, small_paths)
def test_a_cage_shows_exactly_what_its_capabilities_say(caps: CapabilitySet, path: str) -> None:
    roots = {PathBase.HOST: "", PathBase.CONFIG: "/cfg", PathBase.PROJECT: "/prj"}
    bases = CapabilityBases(roots[PathBase.CONFIG], (roots[PathBase.PROJECT],))
    compiled = compile_policy(cage_policy(caps, "/inst", bases))
    # The three bases must lie apart, which a grant of the host's root would undo.
    assume(caps.mode_at(CapabilityPath(PathBase.HOST, AbsPath("/"))) is None)

    for base, root in roots.items():
        expected = caps.mode_at(CapabilityPath(base, AbsPath(path)))
        assert compiled.mode_at((root + path).rstrip("/") or "/") is expected
    assert compiled.mode_at("/inst/main.py") is FsMode.RO
    assert compiled.mode_at("/elsewhere") is None
