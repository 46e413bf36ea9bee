"""What a cage policy allows, in words, for a person who has to agree to it.

What a grant means is said by `describe_grant`, in the words of the install prompt; here is only
what a cage adds to that: limits, filter, scratch space, and what is never there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kaged.kernel.capabilities import (
    CapabilityPath,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    PathBase,
)
from kaged.kernel.describe.grants import describe_grant
from kaged.kernel.describe.sentence import Sentence
from kaged.kernel.describe.toolchains import describe_toolchain
from kaged.kernel.paths import AbsPath
from kaged.kernel.policy import (
    CagePolicy,
    CageState,
    FsMode,
    MaybeCaged,
    SeccompProfile,
    merge_grants,
)
from kaged.kernel.protected_list import PROTECTED, PathClass

UNCAGED = Sentence.dangerous_if(
    "has no cage: it reaches everything that the daemon's user can",
    "nothing stands between it and this machine",
)


def describe_policy(policy: CagePolicy, *, plugin: bool) -> tuple[Sentence, ...]:
    """Return what a cage with this policy may do, and what it may not.

    Dangerous grants carry a warning, so that nobody has to know the grammar. A plugin's cage has
    only the programs that it was granted.
    """
    return (
        *_files(policy),
        *_network(policy),
        *_programs(policy, plugin=plugin),
        *_named(policy),
        *map(
            Sentence,
            (*_state(policy), *_calls(policy), *_limits(policy), *_environment(policy), *_always()),
        ),
    )


def brief_policy(policy: MaybeCaged, root: str) -> str:
    """Return what an agent may do, in a few words for a line at the bottom of a screen."""
    if policy is None:
        return "no cage"
    writable = [one.path for one in merge_grants(policy) if one.mode is FsMode.RW]
    if any(root == path or root.startswith(f"{path.rstrip('/')}/") for path in writable):
        files = "writes the project"
    else:
        files = "writes some folders" if writable else "reads only"
    if any(one.host is None for one in policy.net):
        return f"{files}, any host"
    hosts = len({one.host for one in policy.net})
    net = "no network" if not hosts else "1 host" if hosts == 1 else f"{hosts} hosts"
    return f"{files}, {net}"


def describe_protected(
    allowed: Sequence[tuple[str, str]], *, refuse_reviewed: bool
) -> tuple[Sentence, ...]:
    """Return what a cage that can write is kept from, and each path that the operator allows.

    `allowed` are paths with the digest of what lies there now.
    """
    kinds = (PathClass.RUN, PathClass.REVIEWED) if refuse_reviewed else (PathClass.RUN,)
    listed = [one for one in PROTECTED if one.kind in kinds]
    examples = {one.why: one.pattern for one in reversed(listed)}  # the first of each reason
    names = ", ".join(reversed(examples.values()))
    kept = f"cannot change what programs of this machine run without a look: {names}"
    kept += f", {len(listed) - len(examples)} more such paths"
    found = [Sentence(f"{kept}, and keys of .git/config that run commands")]
    found += [
        Sentence.dangerous_if(
            f"may change the protected path {path}, because config.toml allows it; "
            f"sha256 now: {digest}",
            "programs of this machine run what is written there",
        )
        for path, digest in allowed
    ]
    return tuple(found)


def _granted(item: ManifestCapability, but: str = "") -> Sentence:
    found = describe_grant(item)
    return replace(found, words=f"may {found.words}{but}")


def _here(path: str) -> CapabilityPath:
    # A policy has absolute paths only, and this one is put into a sentence, not opened.
    return CapabilityPath(PathBase.HOST, AbsPath(path))


def _files(policy: CagePolicy) -> list[Sentence]:
    found: list[Sentence] = []
    grants = merge_grants(policy)
    for grant in sorted(grants, key=lambda one: one.path):
        inside_rw = any(
            other.mode is FsMode.RW and grant.path.startswith(f"{other.path}/") for other in grants
        )
        but = "" if grant.mode is FsMode.RW else ", but not change it"
        if but and inside_rw:
            but += " although what is around it may be changed"
        found.append(_granted(FsCapability(grant.mode, _here(grant.path)), but))
    found += [Sentence(f"may {describe_toolchain(name)}") for name in policy.toolchains]
    others = "sees no other file of this machine, apart from system libraries, read-only"
    return [*found, Sentence(others)]


def _network(policy: CagePolicy) -> list[Sentence]:
    if not policy.net:
        return [Sentence("has no network")]
    found = [_granted(NetCapability(target)) for target in policy.net]
    return [
        *found,
        Sentence("every connection is checked outside the cage and recorded"),
    ]


def _programs(policy: CagePolicy, *, plugin: bool) -> list[Sentence]:
    if not plugin:
        words = "may start the programs of this machine (system), inside its cage"
        return [Sentence(words)]
    found = [_granted(ExecCapability(one.binary, _here(one.cwd))) for one in policy.exec]
    own = "may start its own program and interpreter, sh, env and the coreutils, and no other"
    return [*found, Sentence(f"{own} program by name")]


def _named(policy: CagePolicy) -> list[Sentence]:
    if not policy.capabilities:
        return []
    names = ", ".join(sorted(policy.capabilities))
    return [Sentence(f"may use tools that ask for these grants by name: {names}")]


def _state(policy: CagePolicy) -> list[str]:
    if policy.state is CageState.PERSISTENT:
        return ["keeps its scratch space /tmp from one run to the next"]
    return [
        f"has {policy.limits.tmpfs_mb} MiB of scratch space in /tmp, which is gone when it ends"
    ]


def _calls(policy: CagePolicy) -> list[str]:
    if policy.seccomp is SeccompProfile.RELAXED:
        return ["relaxed system-call filter: may debug and profile its own processes"]
    return [
        "strict system-call filter: no debugging, no mounts, no namespaces, no kernel interfaces"
    ]


def _limits(policy: CagePolicy) -> list[str]:
    limits = policy.limits
    most = ", ".join(
        (
            f"{limits.memory_mb} MiB of memory",
            f"{limits.pids} processes",
            f"{limits.open_files} open files",
            f"files of {limits.file_size_mb} MiB",
            f"a processor share of {limits.cpu_shares}",
        )
    )
    lines = [f"at most {most}"]
    if limits.walltime_sec:
        lines.append(f"is killed after {limits.walltime_sec} seconds")
    return lines


def _environment(policy: CagePolicy) -> list[str]:
    if not policy.env:
        return []
    names = ", ".join(sorted(name for name, _ in policy.env))
    return [f"is given these variables beside the usual ones: {names}"]


def _always() -> list[str]:
    hidden = "database, configuration, tokens, sockets or environment"
    return [f"never sees the daemon's {hidden}, nor another plugin's files"]
