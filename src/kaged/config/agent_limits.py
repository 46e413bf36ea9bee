"""What an agent's cage may use where nobody says anything else: enough for real builds.

Measured with public packages that are installed, built and tested in a cage
(`docs/reference/cage.md` has the table). Plugins keep the small limits of their specification.
"""

from __future__ import annotations

import functools
import os
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import CageLimits

LEAST_MEMORY_MB: Final = 2048
MOST_MEMORY_MB: Final = 16384
MEMORY_SHARE: Final = 4
"""An agent's cage may have a quarter of the machine."""

MOST_TMPFS_MB: Final = 4096
TMPFS_SHARE: Final = 2
"""`/tmp` lies in memory: half of what the cage may have."""

PIDS: Final = 1024
OPEN_FILES: Final = 4096
FILE_SIZE_MB: Final = 4096
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """The defaults of a machine, and how much memory it has in all."""

    limits: CageLimits
    machine_mb: int


def defaults_for(machine_mb: int) -> CageLimits:
    """Return the limits of agents' cages on a machine with so much memory. Pure.

    A small machine gives up to half of what it has rather than less than a build needs.
    """
    share = min(max(machine_mb // MEMORY_SHARE, LEAST_MEMORY_MB), MOST_MEMORY_MB)
    memory_mb = max(1, min(share, max(CageLimits().memory_mb, machine_mb // 2)))
    return CageLimits(
        memory_mb=memory_mb,
        pids=PIDS,
        open_files=OPEN_FILES,
        file_size_mb=FILE_SIZE_MB,
        tmpfs_mb=max(CageLimits().tmpfs_mb, min(memory_mb // TMPFS_SHARE, MOST_TMPFS_MB)),
    )


@functools.cache
def agent_defaults() -> AgentDefaults:
    """Return the defaults of this machine, which stay as they are while the daemon runs."""
    machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    return AgentDefaults(defaults_for(machine_mb), machine_mb)
