from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel import permissions
from kaged.kernel.decision import CapabilityDenied, Decision, SeccompInsufficient
from kaged.kernel.describe import require
from kaged.kernel.mounts import Mount
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.paths import contains
from kaged.kernel.permissions import PathFact, compile_policy, decide_tool, mounts_of
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode, SeccompProfile
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    SeccompRequirement,
    ToolRequirement,
)
from requirements import requirement
from unit.kernel.strategies import anything, modes, net_targets, patiently, small_paths

READ, WRITE = FsRequirement(FsMode.RO), FsRequirement(FsMode.RW)
ROOT = "/home/ann/project"


def cage(*fs: str, **more: object) -> CagePolicy:
    """Make a policy from entries such as `ro ./src`, resolved below the project's root."""
    grants = (entry.split(" ", 1) for entry in fs)
    policy = CagePolicy(tuple(FsGrant(real(path), FsMode(mode)) for mode, path in grants))
    return replace(policy, **more)


def real(path: str) -> str:
    return f"{ROOT}/{path.removeprefix('.').strip('/')}".rstrip("/")


def at(path: str, *, search: bool = False) -> PathFact:
    return PathFact(path, real(path), search)


def decide(need: ToolRequirement, policy: CagePolicy | None, *paths: str) -> Decision:
    return decide_tool((need,), policy, tuple(map(at, paths)))


@requirement("AT-PERM-03")
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("./src", True),
        ("./src/a", True),
        ("./src/deep/er/a", True),
        ("./src-secret/a", False),
        ("./srcx", False),
        ("./sr", False),
        (".", False),
    ],
)
def test_a_mount_grants_by_components(path: str, allowed: bool) -> None:
    decision = decide(READ, cage("ro ./src"), path)

    assert decision.allowed is allowed
    if not allowed:
        with pytest.raises(CapabilityDenied) as caught:
            require(decision)
        assert caught.value.code == "capability_denied"


@requirement("AT-PERM-05")
def test_reading_is_met_by_both_modes_and_writing_by_rw_only() -> None:
    assert decide(READ, cage("ro ./src"), "./src/a").allowed
    assert decide(READ, cage("rw ./src"), "./src/a").allowed
    assert decide(WRITE, cage("rw ./src"), "./src/a").allowed
    assert not decide(WRITE, cage("ro ./src"), "./src/a").allowed


@requirement("AT-PERM-06")
@pytest.mark.parametrize("turn", [1, -1])
def test_the_most_specific_mount_decides(turn: int) -> None:
    policy = cage(*["rw ./src", "ro ./src/vendor", "rw ./src/vendor/ours"][::turn])

    assert decide(WRITE, policy, "./src/a").allowed
    assert not decide(WRITE, policy, "./src/vendor/a").allowed
    assert decide(READ, policy, "./src/vendor/a").allowed
    assert decide(WRITE, policy, "./src/vendor/ours/a").allowed


@requirement("AT-PERM-07")
def test_a_file_the_root_and_a_pattern_grant_exactly_what_they_name() -> None:
    readme = cage("ro ./README.md")
    assert decide(READ, readme, "./README.md").allowed
    assert not decide(READ, readme, "./README.md.bak").allowed
    assert not decide(READ, readme, "./README").allowed
    file = compile_policy(readme, [Mount(real("./README.md"), FsMode.RO, file=True)])
    assert decide_tool((READ,), file, (at("./README.md"),)).allowed
    assert not decide_tool((READ,), file, (at("./README.md/x"),)).allowed

    for root in (".", "./"):
        assert decide(WRITE, cage(f"rw {root}"), "./any/thing").allowed
        assert decide(WRITE, cage(f"rw {root}"), ".").allowed
    outside = PathFact("../x", "/home/ann/x")
    assert not decide_tool((READ,), cage("rw ."), (outside,)).allowed

    python = cage("ro ./src/*.py")
    assert decide(READ, python, "./src/a.py").allowed
    assert not decide(READ, python, "./src/a.pyc").allowed
    assert not decide(READ, python, "./src/sub/a.py").allowed
    assert not decide(WRITE, python, "./src/a.py").allowed
    # A directory that exists under such a name is that directory, when the disk says so.
    odd = compile_policy(cage("ro ./app/[id]"), [Mount(real("./app/[id]"), FsMode.RO)])
    assert decide_tool((READ,), odd, (at("./app/[id]/page.tsx"),)).allowed
    assert not decide_tool((READ,), odd, (at("./app/i"),)).allowed


@requirement("AT-PERM-09")
@pytest.mark.parametrize(("need", "detail"), [(WRITE, "rw:fs:./data/x"), (READ, "ro:fs:./data/x")])
def test_a_refused_path_is_named_as_it_was_asked_for(need: FsRequirement, detail: str) -> None:
    decision = decide(need, cage("rw ./src"), "./data/x")

    assert not decision.allowed
    assert decision.code == "capability_denied"
    assert decision.detail == detail
    assert "./data/x" in decision.remedy
    assert ROOT not in decision.detail + decision.remedy


@requirement("AT-PERM-10")
def test_a_seccomp_requirement_wants_that_very_profile() -> None:
    relaxed = cage(seccomp=SeccompProfile.RELAXED)
    decision = decide(SeccompRequirement(), cage())

    assert decide(SeccompRequirement(), relaxed).allowed
    assert not decision.allowed
    assert decision.code == "seccomp_insufficient"
    assert decision.detail == "requires relaxed, have default"
    with pytest.raises(SeccompInsufficient):
        require(decision)


@requirement("AT-PERM-11")
@pytest.mark.parametrize("name", ["shell", "exec"])
def test_a_named_capability_must_be_in_the_cage(name: str) -> None:
    other = "exec" if name == "shell" else "shell"
    decision = decide(CapabilityRequirement(name), cage(capabilities=frozenset({other})))

    assert decide(CapabilityRequirement(name), cage(capabilities=frozenset({name}))).allowed
    assert not decision.allowed
    assert decision.code == "capability_denied"
    assert decision.detail == name


@requirement("AT-PERM-12")
@pytest.mark.parametrize(
    ("allow", "target", "allowed"),
    [
        ([], "a.test:443", False),
        (["a.test:443"], "a.test:443", True),
        (["a.test:443"], "a.test:80", False),
        (["a.test:443"], "b.test:443", False),
        (["a.test:443"], "x.a.test:443", False),
        (["a.test:*"], "a.test:443", True),
        (["a.test:*"], "a.test:*", True),
        (["a.test:443"], "a.test:*", False),
        (["a.test:*"], "*", False),
        (["b.test:1", "a.test:443"], "a.test:443", True),
        (["*"], "a.test:443", True),
        (["*"], "*", True),
    ],
)
def test_a_net_requirement_must_be_allowed(allow: list[str], target: str, allowed: bool) -> None:
    policy = cage(net=tuple(map(parse_target, allow)))
    decision = decide(NetRequirement(parse_target(target)), policy)

    assert decision.allowed is allowed
    if not allowed:
        assert decision.code == "capability_denied"
        assert decision.detail == f"net:{target}"


@requirement("AT-PERM-13")
@pytest.mark.parametrize(
    "policy",
    [
        replace(CagePolicy(), fs=None),
        replace(CagePolicy(), fs=("/x",)),
        replace(CagePolicy(), fs=[FsGrant("/x", FsMode.RW)]),
        cage(fs=(FsGrant("relative", FsMode.RW),)),
        cage(fs=(FsGrant("/x/../y", FsMode.RW),)),
        cage(fs=(FsGrant("/x", "rwx"),)),  # type: ignore[arg-type] # that is the test
        cage("rw .", net=None),
        cage("rw .", net=("*",)),
        cage("rw .", capabilities="shell"),
        cage("rw .", capabilities=frozenset({1})),
        cage("rw .", seccomp="none"),
        {"fs": []},
        "policy",
        object(),
        0,
    ],
)
@pytest.mark.parametrize("requires", [(), (READ,), (CapabilityRequirement("s"),)])
def test_a_malformed_policy_denies_every_call(
    policy: object, requires: tuple[ToolRequirement, ...]
) -> None:
    decision = decide_tool(requires, cast("CagePolicy", policy), (at("./x"),))

    assert not decision.allowed
    assert decision.code == "capability_denied"
    assert decision.detail == "malformed cage policy"
    assert decision.fault


@requirement("AT-PERM-13")
@pytest.mark.parametrize("need", [{"kind": "magic"}, "fs", None, object(), NetTarget("a", 1)])
@pytest.mark.parametrize("policy", [None, cage("rw .")])
def test_an_unknown_requirement_denies_the_call(need: object, policy: CagePolicy | None) -> None:
    decision = decide_tool((READ, cast("ToolRequirement", need)), policy, (at("./x"),))

    assert not decision.allowed
    assert "unknown" in decision.detail


@requirement("AT-PERM-13")
def test_an_exception_in_the_check_denies_the_call() -> None:
    class Broken:
        @property
        def resolved(self) -> str:
            raise RuntimeError("boom")

    decision = decide_tool((READ,), cage("rw ."), (cast("PathFact", Broken()),))

    assert not decision.allowed
    assert "boom" not in decision.detail
    assert "boom" in decision.fault


def test_every_requirement_must_be_met_and_the_first_refusal_counts() -> None:
    shell = CapabilityRequirement("shell")
    policy = cage("rw ./src")

    assert not decide_tool((WRITE, shell), policy, (at("./src"),)).allowed
    assert decide_tool((WRITE, shell), policy, (at("./data"),)).rule == "tool.fs"
    assert decide_tool((shell, WRITE), policy, (at("./data"),)).rule == "tool.capability"
    both = replace(policy, capabilities=frozenset({"shell"}))
    assert decide_tool((WRITE, shell), both, (at("./src"),)).allowed
    assert decide_tool((), policy).allowed


def test_every_path_of_a_call_is_checked() -> None:
    policy = cage("rw ./src")

    assert decide(WRITE, policy, "./src/a", "./src/b").allowed
    refused = decide(WRITE, policy, "./src/a", "./data/b")
    assert refused.detail == "rw:fs:./data/b"


def test_paths_that_can_be_read_only_once_are_checked_for_every_requirement() -> None:
    facts = cast("list[PathFact]", (at(path) for path in ["./src/a"]))

    assert not decide_tool((READ, WRITE), cage("ro ./src"), facts).allowed


def test_a_caller_without_a_cage_passes() -> None:
    everything = (WRITE, SeccompRequirement(), CapabilityRequirement("shell"))

    assert decide_tool(everything, None, (at("./x"),)).allowed
    assert decide_tool((), None).allowed


def test_an_empty_cage_grants_no_path() -> None:
    for need in (READ, WRITE):
        assert not decide(need, cage(), ".").allowed
        assert not decide(need, cage(), "./x").allowed


def test_a_call_without_a_path_meets_no_fs_requirement() -> None:
    decision = decide_tool((READ,), cage("rw ."))

    assert not decision.allowed
    assert decision.detail == "ro:fs:"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [(".", True), ("./src", True), ("./src/deep", True), ("./data", False), ("./sr", False)],
)
def test_a_search_may_start_above_or_inside_a_readable_mount(path: str, allowed: bool) -> None:
    policy = cage("ro ./src/deep", "ro ./src/*.py")

    assert decide_tool((READ,), policy, (at(path, search=True),)).allowed is allowed


def test_a_search_place_is_no_licence_to_write() -> None:
    policy = cage("rw ./src/deep")

    assert not decide_tool((WRITE,), policy, (at("./src", search=True),)).allowed
    assert decide_tool((WRITE,), policy, (at("./src/deep", search=True),)).allowed


def test_a_denial_is_the_same_whether_or_not_anything_is_there() -> None:
    policy = cage("ro ./src")
    one, other = (decide(READ, policy, path) for path in ("./data/there", "./data/gone"))

    assert one == replace(
        other,
        detail=other.detail.replace("gone", "there"),
        remedy=other.remedy.replace("gone", "there"),
    )


def test_a_policy_is_compiled_once_and_forgotten_in_time() -> None:
    policy = cage("rw ./src")
    decide(READ, policy, "./src")
    first = permissions._cache[id(policy)]
    decide(READ, policy, "./src")
    assert permissions._cache[id(policy)] is first

    others = [cage(f"ro ./{number}") for number in range(permissions._CACHE_LIMIT)]
    for other in others:
        decide(READ, other, "./src")
    assert id(policy) not in permissions._cache
    assert 0 < len(permissions._cache) <= permissions._CACHE_LIMIT


def test_an_equal_policy_at_a_reused_id_is_not_confused_with_another() -> None:
    policy = cage("ro ./src")
    permissions._cache[id(policy)] = compile_policy(cage("rw ."))

    assert not decide(WRITE, policy, "./data").allowed


def test_a_compiled_policy_says_what_it_was_made_from() -> None:
    policy = cage("rw ./src", "ro ./*.md")
    compiled = compile_policy(policy)

    assert compiled.policy is policy
    assert compiled.problem == ""
    assert compiled.mode_at(real("./src/a")) is FsMode.RW
    assert mounts_of(policy) == (
        Mount(real("./src"), FsMode.RW),
        Mount(real("./*.md"), FsMode.RO, pattern=True),
    )
    assert "TypeError" in compile_policy(replace(policy, fs=None)).problem


grants = st.builds(FsGrant, small_paths, modes)
policies = st.builds(
    CagePolicy,
    fs=st.lists(grants, max_size=4).map(tuple),
    net=st.lists(net_targets, max_size=3).map(tuple),
    seccomp=st.sampled_from(SeccompProfile),
    capabilities=st.frozensets(st.sampled_from(["shell", "exec"])),
)
needs = st.one_of(
    st.builds(FsRequirement, modes),
    st.just(SeccompRequirement()),
    st.builds(NetRequirement, net_targets),
    st.builds(CapabilityRequirement, st.sampled_from(["shell", "exec", "other"])),
)


def _met(need: ToolRequirement, policy: CagePolicy, path: str) -> bool:
    """Return the kernel's answer, worked out the slow and plain way."""
    if isinstance(need, FsRequirement):
        covering = [g for g in policy.fs if contains(g.path, path)]
        deepest = max((len(g.path.rstrip("/")) for g in covering), default=-1)
        held = {g.mode for g in covering if len(g.path.rstrip("/")) == deepest}
        return FsMode.RW in held or (bool(held) and need.mode is FsMode.RO)
    if isinstance(need, SeccompRequirement):
        return policy.seccomp == "relaxed"
    if isinstance(need, CapabilityRequirement):
        return need.name in policy.capabilities
    return any(target.covers(need.target) for target in policy.net)


@patiently
@given(st.lists(needs, max_size=3), policies, st.lists(small_paths, min_size=1, max_size=3))
def test_a_call_is_allowed_exactly_when_every_need_is_met_for_every_path(
    requires: list[ToolRequirement], policy: CagePolicy, wanted: list[str]
) -> None:
    decision = decide_tool(requires, policy, [PathFact(p, p) for p in wanted])

    assert decision.allowed is all(_met(n, policy, p) for n in requires for p in wanted)
    assert not decision.fault


@patiently
@given(policies, grants, st.lists(needs, max_size=2), small_paths)
def test_taking_a_grant_away_never_allows_more_unless_it_narrowed(
    policy: CagePolicy, extra: FsGrant, requires: list[ToolRequirement], path: str
) -> None:
    more = replace(policy, fs=(*policy.fs, extra), capabilities=policy.capabilities | {"other"})
    fact = (PathFact(path, path),)
    if decide_tool(requires, policy, fact).allowed and extra.mode is FsMode.RW:
        assert decide_tool(requires, more, fact).allowed


@patiently
@given(anything, anything, anything)
def test_deciding_on_anything_never_raises(requires: object, policy: object, facts: object) -> None:
    decision = decide_tool(requires, policy, facts)  # type: ignore[arg-type] # that is the test

    # Nothing but a parsed requirement is ever met, and nothing but None is no cage.
    if policy is not None or requires:
        assert not decision.allowed


@patiently
@given(
    st.lists(needs, min_size=1, max_size=2), policies, st.lists(anything, min_size=1, max_size=2)
)
def test_facts_of_any_shape_never_raise(
    requires: list[ToolRequirement], policy: CagePolicy, facts: list[object]
) -> None:
    decision = decide_tool(requires, policy, cast("list[PathFact]", facts))

    if any(isinstance(need, FsRequirement) for need in requires):
        assert not decision.allowed
