"""`SubjectRateLimit`: so many calls per subject and period, no more."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from typing import Any

from pydantic import Field, field_validator

from kaged.base import Clock, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import MAX_RETRY_DELAY_MS, PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

MAX_SUBJECTS = 100_000
"""Buckets kept at once; beyond it the one unused for longest is forgotten."""

NOBODY = "(nobody)"
_COUNTED = "counted"
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = re.compile(r"(?P<count>[1-9][0-9]{0,8})/(?P<period>[smhd])")


class RateOptions(Options):
    """How much is allowed, of which tools."""

    rate: str
    tools: list[str] = Field(default_factory=lambda: ["*"], min_length=1)

    @field_validator("rate")
    @classmethod
    def _written(cls, value: str) -> str:
        if _RATE.fullmatch(value) is None:
            raise ValueError("write a rate as 60/m: a count, a slash and one of s, m, h, d")
        return value


@dataclass(slots=True)
class _SubjectBucket:
    tokens: float
    filled_at_s: float


class SubjectRateLimit(Plugin):
    """Denies tool calls of a subject that uses up its rate; others are not affected.

    `rate: 60/m` is a bucket of sixty that refills evenly. Needs `read_subject`. Calls without a
    subject share one bucket.
    """

    depends_on = "the calls that the subject made before"
    edits = False

    def __init__(self, config: PluginConfig, clock: Clock | None = None) -> None:
        super().__init__(config)
        options = read_options(RateOptions, config)
        if not {"read_subject", "read_roles", "read_teams", "read_claims", "read_permissions"} & (
            config.capabilities
        ):
            raise ValueError("SubjectRateLimit needs the capability read_subject")
        parsed = _RATE.fullmatch(options.rate)
        assert parsed is not None
        self._size = float(parsed["count"])
        self._per_s = self._size / _PERIODS[parsed["period"]]
        self._counts = compile_names(options.tools)
        self._now = (clock or SystemClock()).monotonic_s
        self._buckets: OrderedDict[str, _SubjectBucket] = OrderedDict()

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Take one token of the subject's bucket, or deny."""
        # A call that waited for a person's yes passes the policies again, and is still one call.
        if not self._counts(payload.name) or context.state.get(_COUNTED) == payload.name:
            return None
        security = None if extensions is None else extensions.security
        subject = None if security is None else security.subject
        wait_s = self._take(NOBODY if subject is None else subject.id)
        if wait_s is None:
            context.state[_COUNTED] = payload.name
            return None
        seconds = math.ceil(wait_s)
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason="too many calls",
                description=f"the rate of this subject is used up; try again in {seconds} s",
                code="rate_limited",
                details={"retry_after_s": seconds},
                http_status_code=429,
                http_headers={"retry-after": str(seconds)},
            ),
            retry_delay_ms=min(seconds * 1000, MAX_RETRY_DELAY_MS),
        )

    def _take(self, subject: str) -> float | None:
        """Take a token; returns the seconds until there is one when there is none."""
        now = self._now()
        bucket = self._buckets.get(subject)
        if bucket is None:
            bucket = self._buckets[subject] = _SubjectBucket(self._size, now)
            if len(self._buckets) > MAX_SUBJECTS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(subject)
        elapsed = now - bucket.filled_at_s
        bucket.tokens = min(self._size, bucket.tokens + elapsed * self._per_s)
        bucket.filled_at_s = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return None
        return (1 - bucket.tokens) / self._per_s
