"""`explain`: what a policy allows, in plain words, for a person who has to agree to it."""

from __future__ import annotations

from kaged.cage.grants import merge_grants
from kaged.cage.request import CageKind, Programs
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CagePolicy, CageState, FsMode, SeccompProfile


def explain(policy: CagePolicy, kind: CageKind = CageKind.PLUGIN) -> list[str]:
    """Say in sentences what a cage with this policy may do, and what it may not.

    Dangerous grants come with the word "dangerous", so that nobody has to know the grammar.
    """
    return [
        *_files(policy),
        *_network(policy.net),
        *_programs(policy, kind),
        *_state(policy),
        *_calls(policy),
        *_limits(policy),
        *_environment(policy),
        *_always(),
    ]


def _files(policy: CagePolicy) -> list[str]:
    lines: list[str] = []
    grants = merge_grants(policy)
    for grant in sorted(grants, key=lambda one: one.path):
        inside_rw = any(
            other.mode is FsMode.RW and grant.path.startswith(f"{other.path}/") for other in grants
        )
        if grant.mode is FsMode.RW:
            lines.append(f"may read, change and delete everything below {grant.path}")
        elif inside_rw:
            lines.append(
                f"may read, but not change, {grant.path}, although what is around it may be"
            )
        else:
            lines.append(f"may read, but not change, everything below {grant.path}")
    lines.append("sees no other file of this machine, apart from system libraries, read-only")
    return lines


def _network(targets: tuple[NetTarget, ...]) -> list[str]:
    if not targets:
        return ["has no network"]
    lines: list[str] = []
    for target in targets:
        if target.unrestricted:
            lines.append("dangerous: may connect to any host and port on the internet")
        elif target.port is None:
            lines.append(f"may connect to {_host(target.host)} on every port")
        else:
            lines.append(f"may connect to {_host(target.host)} on port {target.port}")
    lines.append("every connection is checked outside the cage and recorded")
    return lines


def _host(host: str | None) -> str:
    return "services on this very machine (localhost)" if host == "localhost" else str(host)


def _programs(policy: CagePolicy, kind: CageKind) -> list[str]:
    strict = kind is CageKind.PLUGIN
    if not strict:
        return [f"may start the programs of this machine ({Programs.SYSTEM}), inside its cage"]
    lines = [f"may start {one.binary}, with {one.cwd} to work in" for one in policy.exec]
    lines.append(
        "may start its own program and interpreter, sh, env and the coreutils, and no other program"
        " by name"
    )
    return lines


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


__all__ = ["explain"]
