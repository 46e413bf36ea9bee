"""Limits of a cage: `LimitsBackend` (cgroup v2, cgroup v1, rlimits), `LimitGroup`, `LimitStat`."""

from kaged.cage.limits.backend import LimitGroup, LimitsBackend, LimitStat, Resource
from kaged.cage.limits.choose import choose_backend
from kaged.cage.limits.rlimits import RlimitsBackend, rlimits_for

__all__ = [
    "LimitGroup",
    "LimitStat",
    "LimitsBackend",
    "Resource",
    "RlimitsBackend",
    "choose_backend",
    "rlimits_for",
]
