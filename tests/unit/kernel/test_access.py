"""Which grants would let a call pass: the narrowest, or none where none may be given."""

from __future__ import annotations

import pytest

from kaged.kernel.access import AccessGrant, AccessKind, host_access, missing_access, widened
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.permissions import PathFact, compile_policy
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    SeccompRequirement,
    ToolRequirement,
)

ROOT = "/p"
READ, WRITE = FsRequirement(FsMode.RO), FsRequirement(FsMode.RW)
POLICY = CagePolicy(fs=(FsGrant("/p/src", FsMode.RO),), net=(NetTarget("a.org", 443),))


def missing(*requires: ToolRequirement, paths: tuple[str, ...] = ()) -> list[str]:
    facts = [PathFact(one, one) for one in paths]
    found = missing_access(requires, compile_policy(POLICY), facts, ROOT)
    wide = compile_policy(widened(POLICY, found, ROOT))
    if found:
        assert wide.decide(requires, facts).allowed, "what is granted lets the call pass"
    return [one.text for one in found]


def test_only_what_is_missing_is_granted_and_each_once() -> None:
    assert missing(READ, paths=("/p/src/a", "/p/x", "/p/x")) == ["ro:path:x"]
    assert missing(WRITE, paths=("/p/src/a",)) == ["rw:path:src/a"]
    assert missing(READ, paths=("/p",)) == ["ro:path:."]
    shell = CapabilityRequirement("shell")
    assert missing(shell, WRITE, paths=("/p/x",)) == ["capability:shell", "rw:path:x"]
    assert missing(NetRequirement(parse_target("b.org:443"))) == ["host:b.org:443"]
    assert missing(READ, NetRequirement(parse_target("a.org:443")), paths=("/p/src",)) == []


@pytest.mark.parametrize("place", ["/q/x", "/pp", "/p/a*", "/p/a[1]", "/p/new\nline", "/"])
def test_a_place_that_cannot_be_said_is_not_asked_for(place: str) -> None:
    assert missing(READ, paths=(place,)) == []


def test_one_thing_that_is_never_granted_leaves_nothing_to_ask() -> None:
    assert missing(SeccompRequirement(), READ, paths=("/p/x",)) == []
    assert missing(NetRequirement(parse_target("*"))) == []
    assert missing(NetRequirement(parse_target("localhost:80")), READ, paths=("/p/x",)) == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "10.1.2.3", "169.254.169.254", "::1"])
def test_nobody_is_asked_about_the_local_network(host: str) -> None:
    assert host_access(host, 80) is None


def test_a_public_address_is_written_as_a_target() -> None:
    grant = host_access("2606:4700::1111", 443)
    assert grant == AccessGrant(AccessKind.HOST, "[2606:4700::1111]:443")
    assert grant is not None
    assert widened(POLICY, [grant], ROOT).net[-1] == NetTarget("2606:4700::1111", 443)


def test_a_grant_never_takes_a_mode_away() -> None:
    policy = CagePolicy(fs=(FsGrant("/p/src", FsMode.RW),))
    read = AccessGrant(AccessKind.PATH, "src", FsMode.RO)
    assert widened(policy, [read], ROOT) == policy


@pytest.mark.parametrize(
    "written",
    [
        None, [], {}, {"kind": "path", "target": "x"}, {"kind": "host", "target": ""},
        {"kind": "host", "target": "a:1", "mode": "ro"}, {"kind": "moon", "target": "x"},
        {"kind": "path", "target": "x", "mode": "rx"}, {"kind": "path", "target": 1, "mode": "ro"},
    ],
)  # fmt: skip
def test_what_is_no_grant_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r".*"):
        AccessGrant.from_json(written)  # type: ignore[arg-type] - as a store may hold it


def test_a_grant_survives_the_store() -> None:
    for one in (AccessGrant(AccessKind.PATH, "x", FsMode.RW), AccessGrant(AccessKind.TOOL, "a.b")):
        assert AccessGrant.from_json(one.as_json()) == one
