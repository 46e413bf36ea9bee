"""`KeptLimits`: the counts of `RateLimits` outlive the daemon, so that a restart grants nothing.

They are written at the end of the daemon and every few seconds while calls are counted, never on
the way of a call: a daemon that is killed forgets the last seconds, and no quota of a day.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from kaged.base import KagedError
from kaged.services.limits import RateLimits
from kaged.store.service_rows import ServiceRows

KEEP_EVERY_S: Final = 5.0
# No user has a blank name, so this is nobody's entry.
_NOBODY: Final = ""
_PLACE: Final = "kaged.limits"
_NAME: Final = "buckets"

_log = structlog.get_logger("kaged.services")


class KeptLimits:
    """Reads the counts at the start and writes them when they have changed."""

    def __init__(self, limits: RateLimits, rows: ServiceRows) -> None:
        self._limits = limits
        self._rows = rows

    async def load(self) -> None:
        """Go on counting where the last daemon stopped."""
        kept = await self._rows.state(_NOBODY, _PLACE, "", _NAME)
        if kept is not None:
            self._limits.restore(kept)

    async def keep(self) -> None:
        """Write the counts now and then, for ever."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await self.save()

    async def save(self) -> None:
        """Write the counts if anything was counted since; a failure is logged and tried again."""
        if not self._limits.changed:
            return
        self._limits.changed = False
        try:
            await self._rows.put_state(_NOBODY, _PLACE, "", _NAME, self._limits.snapshot(), limit=1)
        except KagedError as error:
            self._limits.changed = True
            _log.warning("services.limits_not_kept", error=error.message)
