"""`decide_tool`: may this caller run this tool on these paths? `CompiledPolicy`: asked often, fast.

Callers hand in facts: paths with every symlink resolved, and mounts resolved the same way. The
kernel compares components and never looks at a disk, so a denied path that exists and one that
does not are denied alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision, SeccompInsufficient, broken, fail_closed
from kaged.kernel.mounts import Mount, MountTable, has_magic
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode, SeccompProfile
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    SeccompRequirement,
    ToolRequirement,
)

_T = TypeVar("_T")
_RO, _RW = FsMode  # an attribute of an enum costs more than a look into a dict
_UNKNOWN = Decision.deny("tool.requirement", "unknown kind of requirement")
_ALLOWED = Decision.allow("tool.policy")
_UNCAGED = Decision.allow("tool.uncaged")
_CACHE_LIMIT = 256


@dataclass(frozen=True, slots=True)
class PathFact:
    """One path of a call: as the caller wrote it, and where it really leads.

    `resolved` is absolute with all symlinks followed (through the nearest existing ancestor when
    the path does not exist yet). With `search` the path is a place to look from: it is enough that
    a readable mount covers it or lies below it.
    """

    requested: str
    resolved: str
    search: bool = False


class CompiledPolicy:
    """A `CagePolicy` prepared for many decisions. Make one with `compile_policy`."""

    __slots__ = ("_capabilities", "_mounts", "_net", "_seccomp", "policy", "problem")

    def __init__(self, policy: CagePolicy, mounts: Iterable[Mount]) -> None:
        """Compile; raises TypeError or ValueError when the policy is malformed."""
        self.policy = policy
        self.problem = ""
        self._mounts = MountTable(mounts)
        self._net = _all_of(NetTarget, policy.net)
        self._capabilities = frozenset(_all_of(str, policy.capabilities))
        self._seccomp = SeccompProfile(policy.seccomp)

    def mode_at(self, path: str) -> FsMode | None:
        """Return how a resolved path is granted: not at all, read-only or read-write."""
        return self._mounts.mode_at(path)

    def decide(
        self, requirements: Sequence[ToolRequirement], path_facts: Sequence[PathFact] = ()
    ) -> Decision:
        """Decide as `decide_tool` does; requirements are taken in order, the first no counts."""
        if self.problem:
            # The reason may name host paths: it is for the log, not for the caller.
            return Decision(False, "tool.policy", "malformed cage policy", fault=self.problem)
        try:
            # Looked at once per requirement: an iterator would be empty the second time, and pass.
            paths = path_facts if type(path_facts) is tuple else tuple(path_facts)
            for requirement in requirements:
                check = _CHECKS.get(type(requirement))
                if check is None:
                    return _UNKNOWN
                refusal = check(self, requirement, paths)
                if refusal is not None:
                    return refusal
        # Boundary, as `fail_closed` is, without its price on the most frequent question.
        except Exception as error:  # noqa: BLE001 - fail closed on anything at all
            return broken("tool.check", error)
        return _ALLOWED

    def refuse_fs(self, need: FsRequirement, paths: Sequence[PathFact]) -> Decision | None:
        """Return the refusal of an fs requirement, or None when every path meets it."""
        mode = need.mode
        if not paths:
            return _no_fs(mode, "", "name a path")
        for fact in paths:
            held = self._mounts.mode_at(fact.resolved)
            if held is _RW or (held is _RO and mode is _RO):
                continue
            if fact.search and mode is _RO and self._mounts.holds_below(fact.resolved):
                continue
            return _no_fs(mode, fact.requested, "grant " + mode + " on " + fact.requested)
        return None

    def refuse_capability(self, need: CapabilityRequirement, _: object) -> Decision | None:
        """Return the refusal of a named capability, or None when the cage has it."""
        if need.name in self._capabilities:
            return None
        return Decision.deny(
            "tool.capability", need.name, f"add {need.name} to the cage's capabilities"
        )

    def refuse_seccomp(self, need: SeccompRequirement, _: object) -> Decision | None:
        """Return the refusal of a seccomp profile, or None when the cage runs under it."""
        if self._seccomp is need.profile:
            return None
        return Decision.deny(
            "tool.seccomp",
            f"requires {need.profile.value}, have {self._seccomp.value}",
            f"set seccomp: {need.profile.value} for the cage",
            SeccompInsufficient.code,
        )

    def refuse_net(self, need: NetRequirement, _: object) -> Decision | None:
        """Return the refusal of a network target, or None when the cage may connect there."""
        if any(grant.covers(need.target) for grant in self._net):
            return None
        text = need.target.text
        return Decision.deny("tool.net", f"net:{text}", f"add {text} to the cage's net.allow")


# Any: each check takes the requirement it is listed under.
_Check: TypeAlias = Callable[[CompiledPolicy, Any, Sequence[PathFact]], Decision | None]
_CHECKS: dict[type, _Check] = {
    FsRequirement: CompiledPolicy.refuse_fs,
    SeccompRequirement: CompiledPolicy.refuse_seccomp,
    NetRequirement: CompiledPolicy.refuse_net,
    CapabilityRequirement: CompiledPolicy.refuse_capability,
}


class _MalformedPolicy(CompiledPolicy):
    """Stands for a policy that cannot be understood: it grants nothing."""

    __slots__ = ()

    def __init__(self, policy: CagePolicy, problem: str) -> None:
        super().__init__(CagePolicy(), ())
        self.policy = policy
        self.problem = problem


MaybePolicy: TypeAlias = CagePolicy | CompiledPolicy | None


def mounts_of(policy: CagePolicy) -> tuple[Mount, ...]:
    """Return a policy's fs entries as mounts, for a policy whose paths are resolved already.

    Without facts from the disk every path with glob characters is a pattern and every other one a
    directory.
    """
    return tuple(map(_mount, _all_of(FsGrant, policy.fs)))


def compile_policy(policy: CagePolicy, mounts: Iterable[Mount] | None = None) -> CompiledPolicy:
    """Prepare a policy for many decisions; never raises.

    `mounts` are the policy's fs entries as resolved on the disk; without them `mounts_of` is used.
    A malformed policy gives one that denies every call and says why in `problem`.
    """
    try:
        return CompiledPolicy(policy, mounts_of(policy) if mounts is None else mounts)
    # Boundary: a policy that cannot be compiled grants nothing, whatever is wrong with it.
    except Exception as error:  # noqa: BLE001 - fail closed on anything at all
        return _MalformedPolicy(policy, f"{type(error).__name__}: {error}")


def decide_tool(
    requirements: Sequence[ToolRequirement],
    policy: MaybePolicy,
    path_facts: Sequence[PathFact] = (),
) -> Decision:
    """Decide whether a caller under `policy` may run a tool with these requirements and paths.

    Every requirement must be met, and an fs requirement by every path. `None` is a caller without a
    cage: it passes. An unknown requirement, a malformed policy and a fault in the check itself are
    denials. Never raises.
    """
    if policy is None:
        return _decide_uncaged(requirements)
    compiled = policy if isinstance(policy, CompiledPolicy) else _compiled(policy)
    return compiled.decide(requirements, path_facts)


@fail_closed("tool.check")
def _decide_uncaged(requirements: Sequence[ToolRequirement]) -> Decision:
    known = all(type(requirement) in _CHECKS for requirement in requirements)
    return _UNCAGED if known else _UNKNOWN


_cache: dict[int, CompiledPolicy] = {}


def _compiled(policy: CagePolicy) -> CompiledPolicy:
    # By identity: hashing a whole policy would cost more than the decision. The entry holds the
    # policy, so its id cannot pass to another object while the entry lives.
    found = _cache.get(id(policy))
    if found is not None and found.policy is policy:
        return found
    if len(_cache) >= _CACHE_LIMIT:
        _cache.clear()
    fresh = compile_policy(policy)
    _cache[id(policy)] = fresh
    return fresh


def _mount(grant: FsGrant) -> Mount:
    return Mount(grant.path, FsMode(grant.mode), pattern=has_magic(grant.path))


def _all_of(kind: type[_T], values: Iterable[object]) -> tuple[_T, ...]:
    if not isinstance(values, tuple | frozenset):
        raise TypeError(f"expected a tuple or frozenset, not {type(values).__name__}")
    found = tuple(value for value in values if isinstance(value, kind))
    if len(found) != len(values):
        raise TypeError(f"expected only {kind.__name__}")
    return found


def _no_fs(mode: FsMode, requested: str, remedy: str) -> Decision:
    # Plain concatenation: formatting an enum costs more than the rest of a denial.
    return Decision(False, "tool.fs", mode + ":fs:" + requested, remedy)
