"""`PluginState` and the transitions between states. Pure."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from kaged.base import KagedError


class PluginState(StrEnum):
    """Where a plugin stands (PH-SUP-27)."""

    DISABLED = "disabled"  # installed, not enabled, no process
    SPAWNING = "spawning"  # process starting, handshake running
    RUNNING = "running"
    CRASHED = "crashed"  # exited unexpectedly, restart pending
    FAILED = "failed"  # limit exceeded or start failed; waits for the operator
    STOPPED = "stopped"  # cleanly stopped


_S = PluginState

# PH-SUP-28 to PH-SUP-36 are the diagram; PH-SUP-37 adds what other rows need.
TRANSITIONS = MappingProxyType(
    {
        _S.DISABLED: frozenset({_S.SPAWNING}),
        _S.SPAWNING: frozenset({_S.RUNNING, _S.FAILED, _S.CRASHED, _S.STOPPED}),
        _S.RUNNING: frozenset({_S.CRASHED, _S.STOPPED}),
        _S.CRASHED: frozenset({_S.SPAWNING, _S.FAILED, _S.STOPPED, _S.DISABLED}),
        _S.FAILED: frozenset({_S.SPAWNING, _S.DISABLED}),
        _S.STOPPED: frozenset({_S.DISABLED, _S.SPAWNING}),
    }
)


def require_transition(name: str, old: PluginState, new: PluginState) -> None:
    """Raise `plugin_state_refused` unless a plugin may go from one state to the other."""
    if new not in TRANSITIONS[old]:
        raise KagedError(
            f"{name} is {old} and cannot become {new}",
            code="plugin_state_refused",
            state=old.value,
            wanted=new.value,
        )
