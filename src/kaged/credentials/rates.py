"""`Rates`: how many requests a minute one cage has made with each credential."""

from __future__ import annotations

from kaged.base import Clock
from kaged.kernel.bindings import CredentialBinding

_MINUTE_S = 60.0


class Rates:
    """A bucket of tokens for each credential that has a limit, full at first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, binding: CredentialBinding) -> bool:
        """Count one request; False when the binding's limit is used up."""
        limit = binding.limits.requests_per_minute
        if limit is None:
            return True
        now_s = self._clock.monotonic_s()
        left, since_s = self._buckets.get(binding.name, (float(limit), now_s))
        left = min(float(limit), left + (now_s - since_s) * limit / _MINUTE_S)
        allowed = left >= 1.0
        self._buckets[binding.name] = (left - 1.0 if allowed else left, now_s)
        return allowed
