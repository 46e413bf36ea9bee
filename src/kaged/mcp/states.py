"""`McpServerState`: where an outside server stands; the words are those of plugins. Pure."""

from __future__ import annotations

from enum import StrEnum


class McpServerState(StrEnum):
    """Where a server stands."""

    DISABLED = "disabled"  # config.toml says so, or what it says cannot be used
    SPAWNING = "spawning"  # process starting, handshake running
    RUNNING = "running"
    CRASHED = "crashed"  # ended unexpectedly, restart pending
    FAILED = "failed"  # given up; waits for the operator
    STOPPED = "stopped"  # cleanly stopped


OFFERING = frozenset({McpServerState.RUNNING, McpServerState.CRASHED, McpServerState.SPAWNING})
"""States in which a server's tools stay at dispatch; calls fail at once while it is not running."""
