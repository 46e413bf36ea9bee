"""The tool-permission decision: what one "may it?" costs, over paths that are all different."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePosixPath

from kaged.kernel.permissions import PathFact, compile_policy, decide_tool
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement
from scoreboard import Row, at_most, row, show

TARGET_US = 3.0
CALLS = 2_000
ROUNDS = 60
ROOT = "/home/ann/project"
REQUIRES = (FsRequirement(FsMode.RW), CapabilityRequirement("shell"))


def run() -> list[Row]:
    """Measure; returns one row per kind of decision."""
    three = _policy(f"{ROOT}/src", f"{ROOT}/docs", f"{ROOT}/src/vendor")
    many = _policy(*(f"{ROOT}/packages/p{number}/src" for number in range(64)), f"{ROOT}/src")
    inside = [f"{ROOT}/src/part{number}/deep/file.py" for number in range(CALLS)]
    outside = [f"{ROOT}/data/part{number}/deep/file.py" for number in range(CALLS)]
    return [
        _row("allowed, 3 mounts", three, inside),
        _row("denied, 3 mounts", three, outside),
        _row("allowed, 65 mounts", many, inside),
    ]


def _row(name: str, policy: CagePolicy, paths: list[str]) -> Row:
    compiled = compile_policy(policy)
    facts = [(PathFact(path.removeprefix(ROOT), path),) for path in paths]
    pure = [(PurePosixPath(grant.path), grant.mode) for grant in policy.fs]
    allowed = _plain(pure, paths[0])
    if decide_tool(REQUIRES, compiled, facts[0]).allowed is not allowed:
        raise RuntimeError(f"{name}: the two ways disagree")

    def kernel() -> None:
        for fact in facts:
            decide_tool(REQUIRES, compiled, fact)

    def plain() -> None:
        for path in paths:
            _plain(pure, path)

    ours_us, peer_us = _rounds_us(kernel), _rounds_us(plain)
    ours = min(ours_us)
    return row(
        f"tool-permission decision, fs and capability, {name}",
        ours,
        "µs",
        against="the same question asked of pathlib, mount by mount",
        peer=min(peer_us),
        target=at_most(TARGET_US, ours, "µs"),
        samples=ours_us,
    )


def _plain(mounts: list[tuple[PurePosixPath, FsMode]], path: str) -> bool:
    wanted = PurePosixPath(path)
    covering = [(len(at.parts), mode) for at, mode in mounts if wanted.is_relative_to(at)]
    return bool(covering) and max(covering)[1] is FsMode.RW


def _rounds_us(work: Callable[[], None]) -> list[float]:
    found: list[float] = []
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) / CALLS * 1e6)
        if time.perf_counter() - begin > 0.4:
            break
    return found


def _policy(*paths: str) -> CagePolicy:
    return CagePolicy(
        fs=tuple(FsGrant(path, FsMode.RW) for path in paths), capabilities=frozenset({"shell"})
    )


if __name__ == "__main__":
    show(run())
