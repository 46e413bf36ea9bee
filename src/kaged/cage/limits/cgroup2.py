"""Limits by cgroup version 2: one tree, below the group that was delegated to this daemon."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kaged.cage.limits import tree
from kaged.cage.limits.backend import LimitedResource, LimitStat
from kaged.cage.limits.rlimits import BWRAP_PROCESSES
from kaged.kernel.policy import CageLimits

_MIB = 1024 * 1024
_CONTROLLERS = {
    "memory": LimitedResource.MEMORY,
    "pids": LimitedResource.PIDS,
    "cpu": LimitedResource.CPU,
}
DAEMON_LEAF = "kaged-daemon"


class Cgroup2Group:
    """The group of one cage."""

    def __init__(self, folder: Path, weight: int | None) -> None:
        self._folder = folder
        self._weight = weight

    @property
    def enter_words(self) -> tuple[str, ...]:
        """Nothing: version 2 takes its lock for whole processes, whichever process moves them."""
        return ()

    @property
    def enter_files(self) -> tuple[str, ...]:
        """None, for the same reason."""
        return ()

    @property
    def join_files(self) -> tuple[str, ...]:
        """The one file that a process's number is written to."""
        return (str(self._folder / "cgroup.procs"),)

    def settle(self) -> None:
        """Apply the share of processors, which is held back while bwrap sets the cage up."""
        if self._weight is not None:
            tree.write(self._folder, "cpu.weight", str(self._weight))

    def stat(self) -> LimitStat:
        """Read what was used and refused so far."""
        return LimitStat(
            memory_bytes=tree.number(self._folder, "memory.current"),
            processes=tree.number(self._folder, "pids.current"),
            oom_kills=tree.keyed(self._folder, "memory.events", "oom_kill"),
            forks_refused=tree.keyed(self._folder, "pids.events", "max"),
        )

    def destroy(self) -> bool:
        """Remove the group; False while the kernel still holds it busy."""
        return tree.remove(self._folder)


class Cgroup2Backend:
    """Limits by cgroup version 2.

    A group with limited children may hold no processes itself, so the daemon moves into a leaf of
    its own before it hands controllers down.
    """

    name = "cgroup2"

    def __init__(self, mount: tree.CgroupMount, instance: str, name: str = name) -> None:
        self.name = name
        self._root = mount.folder
        self._instance = instance
        self._name = tree.backend_name()
        self._moved = False
        self.enforces: frozenset[LimitedResource] = frozenset()

    def prepare(self) -> None:
        """Take over the delegated group. Raises OSError when it is not ours to divide."""
        offered = set(tree.read(self._root, "cgroup.controllers").split()) & set(_CONTROLLERS)
        if not {"memory", "pids"} <= offered:
            raise OSError("the memory and pids controllers are not delegated to this daemon")
        handed_down = set(tree.read(self._root, "cgroup.subtree_control").split())
        if not offered <= handed_down:
            self._move_to_leaf()
            try:
                wanted = " ".join(f"+{name}" for name in sorted(offered))
                tree.write(self._root, "cgroup.subtree_control", wanted)
            except OSError:
                self._move_back()
                raise
        home = self._root / self._instance
        home.mkdir(exist_ok=True)
        tree.write(home, "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(offered)))
        self.enforces = frozenset(_CONTROLLERS[name] for name in offered)

    def create(self, key: str, limits: CageLimits) -> Cgroup2Group:
        """Make the group of one cage with these limits."""
        folder = self._root / self._instance / f"{self._name}-{key}"
        folder.mkdir()
        try:
            tree.write(folder, "memory.max", str(limits.memory_mb * _MIB))
            with contextlib.suppress(OSError):  # absent without swap accounting
                tree.write(folder, "memory.swap.max", "0")
            with contextlib.suppress(OSError):  # Linux 4.19: one victim takes the whole cage along
                tree.write(folder, "memory.oom.group", "1")
            tree.write(folder, "pids.max", str(limits.pids + BWRAP_PROCESSES))
        except OSError:
            tree.remove(folder)
            raise
        shared = LimitedResource.CPU in self.enforces
        return Cgroup2Group(folder, cpu_weight(limits.cpu_shares) if shared else None)

    def sweep(self) -> int:
        """Remove what dead daemons left behind."""
        return tree.sweep(self._root)

    def close(self) -> None:
        """Remove this back end's groups, and the daemon's own unless another still uses it.

        The leaf that the daemon runs in stays until it ends.
        """
        tree.remove_own(self._root / self._instance, self._name)

    def _move_to_leaf(self) -> None:
        leaf = self._root / DAEMON_LEAF
        leaf.mkdir(exist_ok=True)
        tree.write(leaf, "cgroup.procs", str(os.getpid()))
        self._moved = True

    def _move_back(self) -> None:
        with contextlib.suppress(OSError):
            tree.write(self._root, "cgroup.procs", str(os.getpid()))
            (self._root / DAEMON_LEAF).rmdir()
            self._moved = False


def cpu_weight(shares: int) -> int:
    """Turn version 1's shares (2 to 262144) into version 2's weight (1 to 10000)."""
    bounded = min(max(shares, 2), 262144)
    return 1 + (bounded - 2) * 9999 // 262142
