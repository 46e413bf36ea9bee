"""Limits of a cage: `LimitsBackend` (cgroups, a systemd scope, rlimits), `LimitGroup`."""

from kaged.cage.limits.backend import (
    LimitedResource,
    LimitGroup,
    LimitsBackend,
    LimitStat,
    describe_limits,
    weaker_limits,
)
from kaged.cage.limits.choose import choose_backend
from kaged.cage.limits.rlimits import RlimitsBackend, rlimits_for
from kaged.cage.limits.scope import ScopeRequest

__all__ = [
    "LimitGroup",
    "LimitStat",
    "LimitedResource",
    "LimitsBackend",
    "RlimitsBackend",
    "ScopeRequest",
    "choose_backend",
    "describe_limits",
    "rlimits_for",
    "weaker_limits",
]
