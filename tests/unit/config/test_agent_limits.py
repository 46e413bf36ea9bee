"""Agents' cages have room for real builds, and never more than half of a machine."""

from __future__ import annotations

import pytest

from kaged.config.agent_limits import agent_defaults, defaults_for
from kaged.kernel.policy import CageLimits


@pytest.mark.parametrize(
    ("machine_mb", "memory_mb", "tmpfs_mb"),
    [
        (512, 512, 256),
        (1024, 512, 256),
        (4096, 2048, 1024),
        (24_000, 6000, 3000),
        (1_000_000, 16_384, 4096),
    ],
)
def test_memory_is_a_share_of_the_machine(machine_mb: int, memory_mb: int, tmpfs_mb: int) -> None:
    limits = defaults_for(machine_mb)
    assert (limits.memory_mb, limits.tmpfs_mb) == (memory_mb, tmpfs_mb)
    assert limits.pids > CageLimits().pids
    assert limits.cpu_shares == CageLimits().cpu_shares


def test_this_machine_has_what_its_memory_gives() -> None:
    found = agent_defaults()
    assert found.limits == defaults_for(found.machine_mb)
    assert found.machine_mb > 0
