"""`ToolPermissions`: may this caller make this call? Facts from the disk, decided by the kernel.

The caller's `CagePolicy` is the only source of the answer. It is compiled once, with its mounts
resolved on the disk; a call then costs a few microseconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.base.realpath import real_path
from kaged.kernel.decision import Decision
from kaged.kernel.mounts import Mount, has_magic
from kaged.kernel.permissions import CompiledPolicy, PathFact, compile_policy, decide_tool
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.requirements import ToolRequirement
from kaged.tools.definition import PathParam
from kaged.tools.hard_links import HardLinkPolicy
from kaged.workspace import ProjectPath

CACHE_LIMIT: Final = 1024  # policies of agents; one per agent of every loaded project

_log = get_logger(__name__)


class ToolPermissions:
    """Decides calls. Holds compiled policies, by the identity of the policy they came from."""

    def __init__(self, *, refuse_hard_links: bool = False) -> None:
        """Begin; with `refuse_hard_links` cages are held as `HardLinkPolicy` says."""
        self._compiled: dict[int, CompiledPolicy] = {}
        self._refuse_hard_links = refuse_hard_links

    def compiled(self, policy: CagePolicy | None) -> CompiledPolicy | None:
        """Return a policy ready for many decisions; None is a caller without a cage.

        The mounts are looked up on the disk the first time only: what a caller does to its own
        files afterwards does not move its grants.
        """
        if policy is None:
            return None
        # By identity: hashing a policy costs more than a decision. The entry holds the policy, so
        # its id cannot pass to another object while the entry lives.
        known = self._compiled.get(id(policy))
        if known is not None and known.policy is policy:
            return known
        if len(self._compiled) >= CACHE_LIMIT:
            self._compiled.clear()
        fresh = self._compile(policy)
        self._compiled[id(policy)] = fresh
        return fresh

    def _compile(self, policy: CagePolicy) -> CompiledPolicy:
        mounts = resolve_mounts(policy)
        if not self._refuse_hard_links or mounts is None:
            return compile_policy(policy, mounts)
        try:
            return HardLinkPolicy(policy, mounts)
        # Boundary: as `compile_policy`, whose words then say what is wrong.
        except Exception as error:  # noqa: BLE001 - fail closed: a cage without grants
            _log.error("tools.cage_policy_not_compiled", error=repr(error))
            return compile_policy(replace(policy, fs=()), ())

    def decide(
        self,
        requires: Sequence[ToolRequirement],
        policy: CompiledPolicy | None,
        params: Sequence[PathParam],
        paths: Sequence[ProjectPath],
    ) -> Decision:
        """Decide a call with these requirements on these paths."""
        if not paths and not params:
            return decide_tool(requires, policy)
        facts = tuple(
            PathFact(param.value, path.resolved, param.search)
            for param, path in zip(params, paths, strict=True)
        )
        return decide_tool(requires, policy, facts)


def resolve_mounts(policy: CagePolicy) -> tuple[Mount, ...] | None:
    """Resolve a policy's fs entries on the disk; None for a policy that is malformed.

    A link below a path that the same policy lets the caller write is not followed: the caller may
    have put it there to move a grant.
    """
    if not isinstance(policy.fs, tuple):  # pyright: ignore[reportUnnecessaryIsInstance] - fail closed
        return None  # the kernel says what is wrong with it, and denies
    try:
        mounts = [_mount(grant, policy.fs) for grant in policy.fs]
    except (AttributeError, TypeError, ValueError, OSError) as error:
        _log.error("tools.cage_policy_not_resolved", error=repr(error))
        return None
    return tuple(one for one in mounts if one is not None)


def cage_summary(policy: CagePolicy | None, root: str) -> JsonValue:
    """Describe a cage in a few words, with paths as the project has them."""
    if policy is None:
        return "uncaged"
    try:
        mounts: list[JsonValue] = [f"{one.mode}:{_shown(one.path, root)}" for one in policy.fs]
        summary: JsonObject = {
            "fs": mounts,
            "net": [target.text for target in policy.net],
            "capabilities": [*sorted(policy.capabilities)],
            "seccomp": str(policy.seccomp),
        }
    except (AttributeError, TypeError):
        return "malformed"  # it denies everything, and that denial must still be written down
    return summary


def _mount(grant: FsGrant, all_grants: tuple[FsGrant, ...]) -> Mount | None:
    path, mode = grant.path, FsMode(grant.mode)
    literal = os.path.lexists(path)  # AT-DSL-06: what exists under exactly that name is meant
    pattern = has_magic(path) and not literal
    fixed, rest = _split(path) if pattern else (path, "")
    try:
        real = real_path(fixed)
    except OSError:
        return None  # what keeps changing is granted to nobody
    if _moved_by_caller(fixed, grant, all_grants) and not (
        mode is FsMode.RO and _writable_anyway(real, all_grants)
    ):
        return None
    if pattern:
        return Mount(f"{real.rstrip('/')}/{rest}", mode, pattern=True)
    return Mount(real, mode, file=_is_file(real))


def _writable_anyway(real: str, all_grants: tuple[FsGrant, ...]) -> bool:
    """Return whether the caller may write there by another grant, so that `ro` only takes away."""
    try:
        return any(
            other.mode == FsMode.RW and _below(real, real_path(other.path)) for other in all_grants
        )
    except OSError:
        return False


def _split(path: str) -> tuple[str, str]:
    """Divide a pattern into its fixed beginning and the rest with the wildcards."""
    parts = path.split("/")
    first = next(at for at, part in enumerate(parts) if has_magic(part))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _moved_by_caller(path: str, grant: FsGrant, all_grants: tuple[FsGrant, ...]) -> bool:
    for link in _links(path):
        for other in all_grants:
            if other.mode == FsMode.RW and _below(link, other.path) and link != other.path:
                _log.warning(
                    "tools.grant_left_out",
                    grant=grant.path,
                    link=link,
                )
                return True
    return False


def _links(path: str) -> Iterator[str]:
    """Yield the components of a path that are symbolic links."""
    walked = ""
    for part in path.strip("/").split("/"):
        walked += f"/{part}"
        if os.path.islink(walked):  # noqa: PTH114 - texts in, texts out, as everywhere in here
            yield walked


def _below(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def _is_file(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - as above
    except OSError:
        return False  # not there yet: it may become a directory


def _shown(path: str, root: str) -> str:
    if path == root:
        return "./"
    return f"./{path[len(root) + 1 :]}" if path.startswith(f"{root}/") else path
