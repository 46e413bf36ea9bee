"""`RateLimits`: how often a user may call a capability; nothing is limited unless configured.

`KeptLimits` lets the counts outlive the daemon, so that a restart grants nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.base.tasks import report_kind
from kaged.services.errors import CapabilityRateLimited
from kaged.store.service_rows import ServiceRows, StateKey

BUCKETS_LIMIT: Final = 50_000
KEPT_BUCKETS: Final = 10_000
"""How many of the latest counts a snapshot holds."""
_DAY: Final = "day"
KEEP_EVERY_S: Final = 5.0
# Whose entry the kept counts are: no user has a blank name, so nobody's.
_KEPT: Final = StateKey("", "kaged.limits", "", "buckets")

_log = get_logger("kaged.services")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many per minute, and so many at once; 0 per minute means no limit."""

    per_minute: float
    burst: int


@dataclass(frozen=True, slots=True)
class RateRules:
    """The limits of one provider; `per_day` is a quota of calls for one user and capability."""

    invoke: Rate | None = None
    mutating: Rate | None = None
    auth_begin: Rate | None = None
    per_day: int = 0


DEFAULT_RATES: Final = RateRules(
    invoke=Rate(60, 20), mutating=Rate(20, 5), auth_begin=Rate(6, 6), per_day=0
)
"""What `rate = "default"` stands for."""
NO_LIMITS: Final = RateRules()


@dataclass(slots=True)
class _RateBucket:
    tokens: float
    at_s: float


class RateLimits:
    """Token buckets by user and capability; the longest unused ones go first.

    A call that is refused counts nowhere. A day is one of the operator's: it begins at midnight in
    `zone`, by default the machine's. `changed` says that something was counted since its owner last
    set it to False.
    """

    def __init__(
        self,
        clock: Clock,
        rules: Mapping[str, RateRules] | None = None,
        *,
        zone: tzinfo | None = None,
    ) -> None:
        self._clock = clock
        self._zone = zone
        self._rules = dict(rules or {})
        self._buckets: OrderedDict[tuple[str, ...], _RateBucket] = OrderedDict()
        self.changed = False

    def set_rules(self, namespace: str, rules: RateRules) -> None:
        """Set the limits of one provider."""
        self._rules[namespace] = rules

    def require_invoke(
        self, user_id: str, namespace: str, capability_id: str, *, mutating: bool
    ) -> None:
        """Count a call. Raises CapabilityRateLimited when it is one too many."""
        rules = self._rules.get(namespace)
        if rules is None or rules is NO_LIMITS:
            return
        taken: list[_RateBucket] = []
        if rules.invoke is not None:
            taken += self._ready(("invoke", user_id, capability_id), rules.invoke)
        if mutating and rules.mutating is not None:
            taken += self._ready(("mutating", user_id, capability_id), rules.mutating)
        if rules.per_day:
            taken.append(self._ready_today(user_id, capability_id, rules.per_day))
        self._take(taken)

    def require_begin(self, user_id: str, namespace: str) -> None:
        """Count the beginning of a flow. Raises CapabilityRateLimited."""
        rules = self._rules.get(namespace)
        if rules is not None and rules.auth_begin is not None:
            self._take(self._ready(("begin", user_id), rules.auth_begin))

    def _take(self, buckets: Iterable[_RateBucket]) -> None:
        """Count one call in each of the buckets; only after all of them were found ready."""
        for bucket in buckets:
            bucket.tokens -= 1
            self.changed = True

    def _ready_today(self, user_id: str, capability_id: str, per_day: int) -> _RateBucket:
        """Return the bucket of this day. Raises CapabilityRateLimited when it is empty."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC).astimezone(self._zone)
        today = now.date()
        bucket = self._bucket((_DAY, user_id, capability_id, today.isoformat()), per_day)
        if bucket.tokens < 1:
            midnight = datetime.combine(today + timedelta(days=1), time(), tzinfo=self._zone)
            wait = max(1, math.ceil((midnight.astimezone(UTC) - now).total_seconds()))
            raise CapabilityRateLimited(
                f"the {per_day} calls of this day are used up; try again in {wait} s",
                retry_after_seconds=wait,
            )
        return bucket

    def _bucket(self, key: tuple[str, ...], tokens: float) -> _RateBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _RateBucket(tokens, self._clock.monotonic_s())
            while len(self._buckets) > BUCKETS_LIMIT:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket

    def _ready(self, key: tuple[str, ...], rate: Rate) -> tuple[_RateBucket, ...]:
        """Return the bucket of a rate, refilled. Raises CapabilityRateLimited when it is empty."""
        if rate.per_minute <= 0:
            return ()
        now = self._clock.monotonic_s()
        bucket = self._bucket(key, rate.burst)
        per_second = rate.per_minute / 60
        bucket.tokens = min(rate.burst, bucket.tokens + (now - bucket.at_s) * per_second)
        bucket.at_s = now
        if bucket.tokens < 1:
            wait = math.ceil((1 - bucket.tokens) / per_second)
            raise CapabilityRateLimited(
                f"too many calls; try again in {wait} s", retry_after_seconds=wait
            )
        return (bucket,)

    def snapshot(self) -> JsonObject:
        """Return the latest counts for a later `restore`, dated by the clock on the wall."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        latest = list(self._buckets.items())[-KEPT_BUCKETS:]
        kept: list[JsonValue] = [
            [[*key], bucket.tokens, now_ms - round((now_s - bucket.at_s) * 1000)]
            for key, bucket in latest
        ]
        return {"buckets": kept}

    def restore(self, kept: JsonObject) -> None:
        """Take over the counts of a snapshot; what is no count is passed over."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        rows = kept.get("buckets")
        for row in rows if isinstance(rows, list) else ():
            match row:
                case [[*key], int() | float() as tokens, int() as at_ms]:
                    # A clock that was set back does not make counts from the future.
                    age_s = max(0.0, (now_ms - at_ms) / 1000)
                    bucket = _RateBucket(float(tokens), now_s - age_s)
                    self._buckets[tuple(str(part) for part in key)] = bucket
                case _:
                    continue


class KeptLimits:
    """Reads the counts at the start and writes them when they have changed.

    They are written at the end of the daemon and every few seconds while calls are counted, never
    on the way of a call: a daemon that is killed forgets the last seconds, and no quota of a day.
    """

    def __init__(self, limits: RateLimits, rows: ServiceRows) -> None:
        self._limits = limits
        self._rows = rows

    async def load(self) -> None:
        """Go on counting where the last daemon stopped."""
        kept = await self._rows.state(_KEPT)
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
            await self._rows.put_state(_KEPT, self._limits.snapshot(), limit=1)
        except KagedError as error:
            self._limits.changed = True
            _log.warning("services.limits_not_kept", error=error.message)


async def keep_limits(limits: RateLimits, rows: ServiceRows, closing: AsyncExitStack) -> None:
    """Go on counting where the last daemon stopped, and keep the counts while this one lives."""
    kept = KeptLimits(limits, rows)
    await kept.load()
    closing.push_async_callback(kept.save)
    tasks = Tasks("rate limits", report_kind)
    closing.push_async_callback(tasks.close)
    tasks.start(kept.keep(), "keep")
