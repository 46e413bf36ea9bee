from __future__ import annotations

from kaged.cage.explain import explain
from kaged.cage.request import CageKind
from kaged.kernel.capabilities import explain as in_words
from kaged.kernel.capabilities import parse_capability
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
    return "\n".join(f"{one.words} {one.flag}".rstrip() for one in explain(policy, kind))


def test_an_empty_policy_says_what_is_not_there() -> None:
    found = text(CagePolicy())
    assert "has no network" in found
    assert "sees no other file" in found
    assert "no other program" in found
    assert "512 MiB of memory, 100 processes" in found
    assert not any(one.dangerous for one in explain(CagePolicy()))


def test_every_grant_is_a_sentence() -> None:
    found = text(
        CagePolicy(
            fs=(FsGrant("/a", RW), FsGrant("/a/b", RO), FsGrant("/c", RO)),
            net=(NetTarget("api.test", 443), NetTarget("h.test", None), NetTarget("localhost", 5)),
            exec=(ExecGrant("git", "/c"),),
            env=(("TOKEN", "secret-value"),),
            capabilities=frozenset({"shell", "exec"}),
            limits=CageLimits(walltime_sec=9),
        )
    )
    for sentence in (
        "may read and change everything in /a\n",
        "may read everything in /a/b, but not change it although what is around it may be changed",
        "may read everything in /c, but not change it\n",
        "may connect to api.test, port 443\n",
        "may connect to h.test, any port\n",
        "may connect to localhost, port 5 !! DANGEROUS: services on this machine",
        "may run the program git in /c\n",
        "grants by name: exec, shell",
        "is killed after 9 seconds",
        "TOKEN",
    ):
        assert sentence in found
    assert "secret-value" not in found


def test_grants_are_put_into_the_words_of_the_install_prompt() -> None:
    policy = CagePolicy(
        fs=(FsGrant("/etc", RW),),
        net=(NetTarget(None, None), NetTarget("127.0.0.1", 80)),
        exec=(ExecGrant("bash", "/srv"),),
    )
    found = {one.words: one.warning for one in explain(policy)}
    for spelling in ("write:fs:/etc", "net:*", "net:127.0.0.1:80", "exec:bash:/srv"):
        words = in_words(parse_capability(spelling))
        assert words.dangerous
        assert found[f"may {words.words}"] == words.warning


def test_other_kinds_and_profiles_are_told_apart() -> None:
    found = text(
        CagePolicy(seccomp=SeccompProfile.RELAXED, state=CageState.PERSISTENT), CageKind.AGENT
    )
    assert "may start the programs of this machine" in found
    assert "may debug" in found
    assert "keeps its scratch space" in found
