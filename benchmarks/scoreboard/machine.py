"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts of a machine that figures depend on."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str


def this_machine() -> Machine:
    """Return the facts of this one."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages * size / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def load() -> float:
    """Return how many processes were ready to run on average during the last minute."""
    return round(os.getloadavg()[0], 2)


def commit() -> str:
    """Return the commit that is measured; with a plus if the tree differs from it."""
    if shutil.which("git") is None:
        return "unknown"
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{head}+" if head and changed else head or "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


__all__ = ["Machine", "commit", "load", "this_machine"]
