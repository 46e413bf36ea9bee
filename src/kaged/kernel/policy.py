"""`CagePolicy`: what one cage grants. A value; the cage package turns it into a process."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.net import NetTarget
from kaged.kernel.paths import AbsPath, within
from kaged.kernel.toolchains import Toolchain


class FsMode(StrEnum):
    """How a path is mounted."""

    RO = "ro"
    RW = "rw"


class SeccompProfile(StrEnum):
    """Which system-call filter a cage runs under; `relaxed` admits debuggers."""

    DEFAULT = "default"
    RELAXED = "relaxed"


class CageState(StrEnum):
    """Whether the cage's own scratch space outlives one process."""

    EPHEMERAL = "ephemeral"
    PERSISTENT = "persistent"


@dataclass(frozen=True, slots=True)
class FsGrant:
    """One path of the host that exists inside, read-only or read-write."""

    path: str
    mode: FsMode


@dataclass(frozen=True, slots=True)
class ExecGrant:
    """One program that may be started by name, and the directory shown for it to work in."""

    binary: str
    cwd: str


@dataclass(frozen=True, slots=True)
class CageLimits:
    """Resource limits; 0 means no limit of that kind (never for memory_mb, pids, cpu_shares)."""

    memory_mb: int = 512
    cpu_shares: int = 256
    pids: int = 100
    walltime_sec: int = 0
    open_files: int = 1024
    file_size_mb: int = 1024
    tmpfs_mb: int = 64


@dataclass(frozen=True, slots=True)
class CagePolicy:
    """Everything one cage grants; what is not here does not exist inside.

    `credentials` are those that it asks for by name; the operator's configuration says which of
    them it uses, and no value of them is ever inside. `toolchains` are shown as the host has them.

    `None` in place of a policy means "uncaged" and is written out wherever it is used.
    """

    fs: tuple[FsGrant, ...] = ()
    net: tuple[NetTarget, ...] = ()
    exec: tuple[ExecGrant, ...] = ()
    state: CageState = CageState.EPHEMERAL
    seccomp: SeccompProfile = SeccompProfile.DEFAULT
    capabilities: frozenset[str] = frozenset()
    credentials: tuple[str, ...] = ()
    toolchains: tuple[Toolchain, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    limits: CageLimits = field(default_factory=CageLimits)


MaybeCaged: TypeAlias = CagePolicy | None


def merge_grants(policy: CagePolicy) -> tuple[FsGrant, ...]:
    """Reduce a policy's paths to one mode each: rw wins over ro on one path (PH-CAGE-18).

    The directory of an exec entry is shown read-only unless an fs entry covers it (PH-AMB-65).
    """
    modes: dict[str, FsMode] = {}
    for grant in policy.fs:
        if modes.get(grant.path) is not FsMode.RW:
            modes[grant.path] = grant.mode
    for entry in policy.exec:
        if not any(within(AbsPath(entry.cwd), AbsPath(path)) for path in modes):
            modes[entry.cwd] = FsMode.RO
    return tuple(FsGrant(path, mode) for path, mode in modes.items())
