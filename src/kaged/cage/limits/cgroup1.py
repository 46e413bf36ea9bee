"""Limits by cgroup version 1: one hierarchy per controller, each with a group per cage."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kaged.cage.limits import tree
from kaged.cage.limits.backend import LimitedResource, LimitStat
from kaged.kernel.policy import CageLimits

_MIB = 1024 * 1024
# Shells put variables of their own into an empty environment, and a cage can read bwrap's.
_ENTER = (
    'while [ "$1" != -- ]; do echo 0 > "$1" || exit 126; shift; done; shift; '
    '[ -n "$BASH_VERSION" ] && exec -c "$@"; unset PWD OLDPWD; exec "$@"'
)
# bwrap outside and its first process inside count, beside the operator's number.
_OWN_PROCESSES = 2
_CONTROLLERS = {
    "memory": LimitedResource.MEMORY,
    "pids": LimitedResource.PIDS,
    "cpu": LimitedResource.CPU,
}


class Cgroup1Group:
    """The groups of one cage, one per controller."""

    def __init__(self, folders: dict[str, Path], limits: CageLimits) -> None:
        self._folders = folders
        self._limits = limits

    @property
    def enter_words(self) -> tuple[str, ...]:
        """Words that make a single-threaded program enter the groups and become the next one.

        A thread that moves itself needs no lock. Moving another process takes one that every fork
        on the machine waits for, and that is granted only after all processors have rested.
        """
        return ("/bin/sh", "-c", _ENTER, "sh", *self.enter_files, "--")

    @property
    def enter_files(self) -> tuple[str, ...]:
        """The list of threads of each group; `0` is the one that writes."""
        return tuple(f"{folder}/tasks" for folder in self._folders.values())

    @property
    def join_files(self) -> tuple[str, ...]:
        """Nothing to join: bwrap enters by itself."""
        return ()

    def settle(self) -> None:
        """Apply the share of processors, which is held back while bwrap sets the cage up."""
        cpu = self._folders.get("cpu")
        if cpu is not None:
            tree.write(cpu, "cpu.shares", str(max(self._limits.cpu_shares, 2)))

    def stat(self) -> LimitStat:
        """Read what was used and refused so far."""
        memory, pids = self._folders.get("memory"), self._folders.get("pids")
        return LimitStat(
            memory_bytes=tree.number(memory, "memory.usage_in_bytes") if memory else None,
            processes=tree.number(pids, "pids.current") if pids else None,
            oom_kills=tree.keyed(memory, "memory.oom_control", "oom_kill") if memory else None,
            forks_refused=tree.keyed(pids, "pids.events", "max") if pids else None,
        )

    def destroy(self) -> bool:
        """Remove the groups; False while the kernel still holds one busy."""
        for name in list(self._folders):
            if tree.remove(self._folders[name]):
                del self._folders[name]
        return not self._folders


class Cgroup1Backend:
    """Limits by cgroup version 1, below this daemon's own group of each controller.

    Never at the root of a hierarchy that has us in a group: that would leave an outer limit.
    """

    name = "cgroup1"

    def __init__(self, mounts: tuple[tree.CgroupMount, ...], instance: str) -> None:
        self._roots: dict[str, Path] = {}
        self._instance = instance
        self._name = tree.backend_name()
        for mount in mounts:
            for controller in mount.controllers & set(_CONTROLLERS):
                self._roots[controller] = mount.folder
        self.enforces: frozenset[LimitedResource] = frozenset(
            _CONTROLLERS[name] for name in self._roots
        )

    def prepare(self) -> None:
        """Make this daemon's own groups; drop the controllers where that is refused."""
        for controller in list(self._roots):
            try:
                (self._roots[controller] / self._instance).mkdir(exist_ok=True)
            except OSError:
                del self._roots[controller]
        self.enforces = frozenset(_CONTROLLERS[name] for name in self._roots)

    def create(self, key: str, limits: CageLimits) -> Cgroup1Group:
        """Make the groups of one cage with these limits."""
        folders: dict[str, Path] = {}
        try:
            for controller, root in self._roots.items():
                folder = root / self._instance / f"{self._name}-{key}"
                folder.mkdir(parents=True)
                folders[controller] = folder
                _set(controller, folder, limits)
        except OSError:
            Cgroup1Group(folders, limits).destroy()
            raise
        return Cgroup1Group(folders, limits)

    def sweep(self) -> int:
        """Remove what dead daemons left behind."""
        return sum(tree.sweep(root) for root in self._roots.values())

    def close(self) -> None:
        """Remove this back end's groups, and the daemon's own unless another still uses them."""
        for root in self._roots.values():
            tree.remove_own(root / self._instance, self._name)


def _set(controller: str, folder: Path, limits: CageLimits) -> None:
    if controller == "memory":
        size = str(limits.memory_mb * _MIB)
        tree.write(folder, "memory.limit_in_bytes", size)
        with contextlib.suppress(OSError):  # only where the kernel accounts swap
            tree.write(folder, "memory.memsw.limit_in_bytes", size)
    elif controller == "pids":
        tree.write(folder, "pids.max", str(limits.pids + _OWN_PROCESSES))
