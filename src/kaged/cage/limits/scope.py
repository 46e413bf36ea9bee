"""`ScopeRequest`: ask systemd for a scope of our own, with a part of the cgroup tree handed down.

A daemon that a person starts from a terminal sits in a group that is not its own to divide. The
manager (the user's for a user, the system's for root) moves this one process into a fresh scope
with `Delegate=yes`; below it, limits are those of cgroup version 2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.limits import tree

ASK_TIMEOUT_S = 5
MOVE_TRIES = 200
MOVE_PAUSE_S = 0.01
MAX_WORDS = 200
_BUS_VARIABLES = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
_MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
    "ssa(sv)a(sa(sv))",
)


@dataclass(frozen=True, slots=True)
class ScopeRequest:
    """What is needed to ask: the program that speaks to the bus, and its environment."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    search_path: str = "/usr/bin:/bin:/usr/local/bin"
    root: bool = field(default_factory=lambda: os.geteuid() == 0)

    def ask(self, unit: str, mount: tree.CgroupMount, proc: Path) -> None:
        """Move this process into a scope of that name; returns when it is there.

        Raises:
            OSError: it was not, and why; nothing has changed then.
        """
        _require_controllers(mount)
        service = _service_of(mount.own)
        if service is not None:
            # Taking the main process out of its unit would confuse the manager that watches it.
            raise OSError(f"the daemon belongs to {service}, whose unit has no Delegate=yes")
        tool = shutil.which("busctl", path=self.search_path)
        if tool is None:
            raise OSError("systemd is not there to ask for a scope")
        self._call(tool, f"{unit}.scope")
        if not _moved(f"/{unit}.scope", proc):
            raise OSError("systemd gave a scope and did not move the daemon into it")

    def words(self, unit: str) -> tuple[str, ...]:
        """Return the arguments of the one call, for the bus of the manager that is asked."""
        return (
            "--system" if self.root else "--user",
            f"--timeout={ASK_TIMEOUT_S}",
            "call",
            *_MANAGER,
            *(unit, "fail"),
            *("4", "Description", "s", "kaged daemon and its cages"),
            *("PIDs", "au", "1", str(os.getpid())),
            *("Delegate", "b", "true"),
            *("CollectMode", "s", "inactive-or-failed"),
            "0",
        )

    def _call(self, tool: str, unit: str) -> None:
        kept = {name: self.environ[name] for name in _BUS_VARIABLES if name in self.environ}
        try:
            done = subprocess.run(  # noqa: S603 - a system program with fixed words and our own pid
                [tool, *self.words(unit)],
                env={"LC_ALL": "C", **kept},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=2 * ASK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError("systemd did not answer when asked for a scope") from None
        if done.returncode != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())[:MAX_WORDS]
            raise OSError(f"systemd gave no scope: {said or f'exit code {done.returncode}'}")


def _require_controllers(mount: tree.CgroupMount) -> None:
    offered = set(tree.read(Path(mount.mountpoint), "cgroup.controllers").split())
    if not {"memory", "pids"} <= offered:
        raise OSError("version 2 has no memory and pids controllers on this host")


def _service_of(own: str) -> str | None:
    """Return the service that a group belongs to; None for a person's session or scope."""
    for part in reversed(own.split("/")):
        if part.endswith(".service"):
            return None if part.startswith("user@") else part
        if part.endswith((".scope", ".slice")):
            return None
    return None


def _moved(end: str, proc: Path) -> bool:
    # The manager answers when the job is queued; the move follows within milliseconds.
    waiting = threading.Event()
    for _ in range(MOVE_TRIES):
        if any(not one.controllers and one.own.endswith(end) for one in tree.cgroup_mounts(proc)):
            return True
        waiting.wait(MOVE_PAUSE_S)
    return False
