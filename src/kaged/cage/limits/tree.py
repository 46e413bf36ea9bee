"""Files of a cgroup tree: where this process is in it, whose groups are stale."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass

_INSTANCE = re.compile(r"kaged-(\d+)-(\d+)")
_BACKENDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One mounted cgroup hierarchy and where this process is in it."""

    controllers: frozenset[str]  # empty for version 2
    mountpoint: str
    own: str  # path of this process below the mountpoint, "/" at its root

    @property
    def folder(self) -> Path:
        """The directory of this process's own group."""
        return Path(self.mountpoint + self.own.rstrip("/"))


def cgroup_mounts(proc: Path = Path("/proc")) -> tuple[CgroupMount, ...]:
    """Find the cgroup hierarchies that this process is in and can see."""
    own = _own_groups((proc / "self/cgroup").read_text(encoding="utf-8", errors="replace"))
    found: list[CgroupMount] = []
    text = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 6 or len(kind) < 3 or not kind[0].startswith("cgroup"):
            continue
        root, mountpoint = fields[3], fields[4]
        if kind[0] == "cgroup2":
            names: frozenset[str] = frozenset()
        else:
            names = frozenset(kind[2].split(",")) & frozenset(
                name for group in own for name in group
            )
            if not names:
                continue
        path = next(
            (place for group, place in own.items() if group == names or names & group), None
        )
        if path is None:
            continue
        # In a container the mount may start at our own group: paths are relative to its root.
        below = path.removeprefix(root.rstrip("/")) if root != "/" else path
        found.append(CgroupMount(names, mountpoint, below or "/"))
    return tuple(found)


def _own_groups(text: str) -> dict[frozenset[str], str]:
    found: dict[frozenset[str], str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        found[frozenset(names.split(",")) if names else frozenset()] = path
    return found


def instance_name() -> str:
    """Return a name for this daemon process that no later one has."""
    return f"kaged-{os.getpid()}-{start_time(os.getpid())}"


def backend_name() -> str:
    """Return a back end's name in this process: a daemon may run a trial one beside its own."""
    return f"b{next(_BACKENDS)}"


def is_stale_group(name: str) -> bool:
    """Return whether a group of this name belongs to a daemon that no longer runs."""
    found = _INSTANCE.fullmatch(name)
    return found is not None and start_time(int(found[1])) != found[2]


def write(folder: Path, name: str, value: str) -> None:
    """Write one control file; the kernel's refusal is an OSError."""
    # Several of these stand between a request and its process: no file object, no pathlib.
    fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def read(folder: Path, name: str) -> str:
    """Read one control file; empty when there is none."""
    try:
        return (folder / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def number(folder: Path, name: str) -> int | None:
    """Read a control file that holds one number."""
    text = read(folder, name)
    return int(text) if text.isdigit() else None


def keyed(folder: Path, name: str, key: str) -> int | None:
    """Read one number out of a control file of `key value` lines."""
    for line in read(folder, name).splitlines():
        word, _, value = line.partition(" ")
        if word == key and value.strip().isdigit():
            return int(value)
    return None


def remove(folder: Path) -> bool:
    """Remove a group and the groups in it; False while one is busy."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return _remove_below(folder)
    return True


def _remove_below(folder: Path) -> bool:
    try:
        for child in [one for one in folder.iterdir() if one.is_dir()]:
            if not remove(child):
                return False
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_if_empty(folder: Path) -> None:
    """Remove a group that nobody uses, and leave one alone that somebody does."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_own(instance: Path, backend: str) -> None:
    """Remove what is left of one back end's groups, then the daemon's own group if that was all."""
    for group in instance.glob(f"{backend}-*"):
        kill_members(group)
        remove(group)
    remove_if_empty(instance)


def kill_members(folder: Path) -> None:
    """Kill every process in a group and in the groups below it."""
    for group in (folder, *(path.parent for path in folder.glob("*/cgroup.procs"))):
        for word in read(group, "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(word), signal.SIGKILL)


def sweep(folder: Path) -> int:
    """Remove the groups of dead daemons from a directory; return how many."""
    removed = 0
    with contextlib.suppress(OSError):
        for child in folder.iterdir():
            if is_stale_group(child.name) and child.is_dir():
                kill_members(child)
                removed += remove(child)
    return removed


def start_time(pid: int) -> str:
    """Return when a process began, in the kernel's own count; empty when there is none."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
