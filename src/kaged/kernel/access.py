"""`AccessGrant`: one more thing that an agent may reach, beyond what its cage was given.

A person grants them when a call was refused. `missing_access` says which ones would let a call
pass, each as narrow as it can be; `widened` puts them into a policy. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from kaged.base.jsonvalue import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.hosts import is_local
from kaged.kernel.mounts import has_magic
from kaged.kernel.net import parse_target
from kaged.kernel.paths import PathInvalid, join, within
from kaged.kernel.paths import normalise as normalise_path
from kaged.kernel.permissions import CompiledPolicy, PathFact
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    ToolRequirement,
)

MAX_TARGET_CHARS: Final = 4000
MAX_MISSING: Final = 20
"""How many grants one question may be about: more than that nobody reads."""


class AccessKind(StrEnum):
    """What is granted."""

    PATH = "path"
    HOST = "host"
    CAPABILITY = "capability"
    TOOL = "tool"


class AccessScope(StrEnum):
    """For how long: one call, the run, the session, or from now on."""

    ONCE = "once"
    RUN = "run"
    SESSION = "session"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """One grant. `target` is a path relative to the project, a `host:port`, or a name.

    `mode` is read-only or read-write for a path, and None for everything else.
    """

    kind: AccessKind
    target: str
    mode: FsMode | None = None

    @property
    def text(self) -> str:
        """The grant as refusals name it: `rw:path:src/a.py`, `host:pypi.org:443`."""
        mode = "" if self.mode is None else f"{self.mode.value}:"
        return f"{mode}{self.kind.value}:{self.target}"

    def as_json(self) -> JsonObject:
        """Return it for programs and the store."""
        mode = None if self.mode is None else self.mode.value
        return {"kind": self.kind.value, "target": self.target, "mode": mode}

    @classmethod
    def from_json(cls, written: JsonValue) -> AccessGrant:
        """Read what `as_json` wrote. Raises ValueError for anything else."""
        if not isinstance(written, dict):
            raise ValueError("no grant")  # noqa: TRY004 - one error type for bad JSON
        kind, target, mode = written.get("kind"), written.get("target"), written.get("mode")
        if not isinstance(target, str) or not 0 < len(target) <= MAX_TARGET_CHARS:
            raise ValueError("a grant without a target")
        found = cls(AccessKind(kind), target, None if mode is None else FsMode(mode))
        if (found.mode is not None) != (found.kind is AccessKind.PATH):
            raise ValueError("a path has a mode, and nothing else has one")
        return found


def missing_access(
    requires: Sequence[ToolRequirement],
    policy: CompiledPolicy,
    facts: Sequence[PathFact],
    root: str,
) -> tuple[AccessGrant, ...]:
    """Return the narrowest grants with which a policy would let a call pass.

    Nothing when one thing that is missing can never be granted by an answer: a system-call
    filter, a place outside the project, the local network, a name that reads as a pattern.
    """
    found: dict[AccessGrant, None] = {}
    for need in requires:
        for one in _missing_for(need, policy, facts, root):
            if one is None:
                return ()
            found[one] = None
    return () if len(found) > MAX_MISSING else tuple(found)


def host_access(host: str, port: int) -> AccessGrant | None:
    """Return the grant for one destination; None where nobody is asked about it.

    `host` is in its normal spelling. This machine and addresses that are not public are named in
    the project file or not at all: what listens there often trusts its callers.
    """
    if is_local(host):
        return None
    shown = f"[{host}]" if ":" in host else host
    return AccessGrant(AccessKind.HOST, f"{shown}:{port}")


def widened(policy: CagePolicy, grants: Iterable[AccessGrant], root: str) -> CagePolicy:
    """Return a policy with grants on top; paths are those of the project at `root`."""
    fs, net, names = list(policy.fs), list(policy.net), set(policy.capabilities)
    for one in grants:
        match one.kind:
            case AccessKind.PATH:
                assert one.mode is not None  # every grant of a path has one
                path = join(root, one.target)
                held = [known for known in fs if known.path == path]
                if any(known.mode is FsMode.RW for known in held):
                    continue
                fs = [known for known in fs if known.path != path]
                fs.append(FsGrant(path, one.mode))
            case AccessKind.HOST:
                target = parse_target(one.target)
                if target not in net:
                    net.append(target)
            case AccessKind.CAPABILITY:
                names.add(one.target)
            case AccessKind.TOOL:
                continue  # no part of a cage
    return replace(policy, fs=tuple(fs), net=tuple(net), capabilities=frozenset(names))


def _missing_for(
    need: ToolRequirement, policy: CompiledPolicy, facts: Sequence[PathFact], root: str
) -> Iterable[AccessGrant | None]:
    """Yield the grants that one requirement lacks; None for what cannot be granted."""
    match need:
        case FsRequirement():
            lacking = [fact for fact in facts if policy.refuse_fs(need, (fact,)) is not None]
            return [_path_access(need.mode, fact.resolved, root) for fact in lacking]
        case CapabilityRequirement():
            if policy.refuse_capability(need, ()) is None:
                return ()
            return [AccessGrant(AccessKind.CAPABILITY, need.name)]
        case NetRequirement():
            if policy.refuse_net(need, ()) is None:
                return ()
            host, port = need.target.host, need.target.port
            return [None if host is None or port is None else host_access(host, port)]
        case _:
            # A system-call filter belongs to the cage itself; nobody is asked to change that.
            return () if policy.refuse_seccomp(need, ()) is None else (None,)


def _path_access(mode: FsMode, resolved: str, root: str) -> AccessGrant | None:
    try:
        base, path = normalise_path(root), normalise_path(resolved)
    except PathInvalid:
        return None
    # What cannot be shown as it is cannot be agreed to either.
    if not within(path, base) or has_magic(path) or not path.isprintable():
        return None
    return AccessGrant(AccessKind.PATH, path[len(base) :].lstrip("/") or ".", mode)
