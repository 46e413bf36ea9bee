"""Limits of a cage: `LimitsBackend` (cgroups, a systemd scope, rlimits), `LimitGroup`."""

from kaged.cage.limits.backend import (
    LimitGroup,
    LimitsBackend,
    LimitStat,
    Resource,
    describe_limits,
)
from kaged.cage.limits.choose import choose_backend
from kaged.cage.limits.rlimits import RlimitsBackend, rlimits_for
from kaged.cage.limits.scope import ScopeRequest

__all__ = [
    "LimitGroup",
    "LimitStat",
    "LimitsBackend",
    "Resource",
    "RlimitsBackend",
    "ScopeRequest",
    "choose_backend",
    "describe_limits",
    "rlimits_for",
]
