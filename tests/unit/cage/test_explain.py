from __future__ import annotations

from kaged.cage.explain import explain
from kaged.cage.request import CageKind
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import (
    CageLimits,
    CagePolicy,
    CageState,
    ExecGrant,
    FsGrant,
    FsMode,
    SeccompProfile,
)

RO, RW = FsMode.RO, FsMode.RW


def text(policy: CagePolicy, kind: CageKind = CageKind.PLUGIN) -> str:
    return "\n".join(explain(policy, kind))


def test_an_empty_policy_says_what_is_not_there() -> None:
    found = text(CagePolicy())
    assert "has no network" in found
    assert "sees no other file" in found
    assert "no other program" in found
    assert "512 MiB of memory, 100 processes" in found
    assert "dangerous" not in found


def test_every_grant_is_a_sentence() -> None:
    found = text(
        CagePolicy(
            fs=(FsGrant("/a", RW), FsGrant("/a/b", RO), FsGrant("/c", RO)),
            net=(NetTarget("api.test", 443), NetTarget("h.test", None), NetTarget("localhost", 5)),
            exec=(ExecGrant("git", "/c"),),
            env=(("TOKEN", "secret-value"),),
            limits=CageLimits(walltime_sec=9),
        )
    )
    for sentence in (
        "may read, change and delete everything below /a",
        "may read, but not change, /a/b, although",
        "may read, but not change, everything below /c",
        "may connect to api.test on port 443",
        "may connect to h.test on every port",
        "services on this very machine (localhost) on port 5",
        "may start git, with /c to work in",
        "is killed after 9 seconds",
        "TOKEN",
    ):
        assert sentence in found
    assert "secret-value" not in found


def test_unrestricted_network_is_called_dangerous() -> None:
    assert "dangerous: may connect to any host" in text(CagePolicy(net=(NetTarget(None, None),)))


def test_other_kinds_and_profiles_are_told_apart() -> None:
    found = text(
        CagePolicy(seccomp=SeccompProfile.RELAXED, state=CageState.PERSISTENT), CageKind.AGENT
    )
    assert "may start the programs of this machine" in found
    assert "may debug" in found
    assert "keeps its scratch space" in found
