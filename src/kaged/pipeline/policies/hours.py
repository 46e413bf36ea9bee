"""`ToolAllowlist`: who may use which tools, and when."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, time, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from kaged.base import Clock, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class AllowRule(Options):
    """Tools for those who have one of the roles or are in one of the teams, at these times."""

    tools: list[str] = Field(min_length=1)
    roles: list[str] = Field(default_factory=list)
    teams: list[str] = Field(default_factory=list)
    days: list[str] = Field(default_factory=list)
    hours: str = ""

    @field_validator("days")
    @classmethod
    def _days(cls, value: list[str]) -> list[str]:
        if unknown := set(value) - set(_DAYS):
            named = ", ".join(sorted(unknown))
            raise ValueError(f"unknown day {named}; days are {', '.join(_DAYS)}")
        return value

    @field_validator("hours")
    @classmethod
    def _hours(cls, value: str) -> str:
        if value and _HOURS.fullmatch(value) is None:
            raise ValueError("write hours as 08:00-18:00")
        return value


class AllowOptions(Options):
    """The rules, and the zone in which their hours are meant."""

    rules: list[AllowRule] = Field(min_length=1)
    zone: str = "UTC"

    @field_validator("zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        zone_of(value)
        return value


@dataclass(frozen=True, slots=True)
class _Compiled:
    names: Callable[[str], bool]
    roles: frozenset[str]
    teams: frozenset[str]
    days: frozenset[int]
    hours: tuple[time, time] | None


class ToolAllowlist(Plugin):
    """Denies a tool call that no rule allows.

    Hours may go over midnight: `22:00-06:00` belongs to the day on which it begins. Rules with
    roles or teams need `read_roles` or `read_teams`.
    """

    depends_on = "the time of the call"
    edits = False

    def __init__(self, config: PluginConfig, clock: Clock | None = None) -> None:
        super().__init__(config)
        options = read_options(AllowOptions, config)
        for part in ("roles", "teams"):
            asked = any(getattr(rule, part) for rule in options.rules)
            if asked and f"read_{part}" not in config.capabilities:
                raise ValueError(f"rules with {part} need the capability read_{part}")
        self._now_ms = (clock or SystemClock()).now_ms
        self._zone = zone_of(options.zone)
        self._rules = [_compile(rule) for rule in options.rules]

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Deny what no rule allows."""
        security = None if extensions is None else extensions.security
        subject = None if security is None else security.subject
        roles = frozenset[str]() if subject is None else subject.roles
        teams = frozenset[str]() if subject is None else subject.teams
        theirs = [
            rule
            for rule in self._rules
            if rule.names(payload.name)
            and (not (rule.roles or rule.teams) or rule.roles & roles or rule.teams & teams)
        ]
        now = datetime.fromtimestamp(self._now_ms() / 1000, tz=UTC).astimezone(self._zone)
        if any(_is_time(rule, now) for rule in theirs):
            return None
        reason = "not at this time" if theirs else "no rule allows it"
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason=f"{payload.name}: {reason}",
                description=f"the operator's list does not allow {payload.name} here: {reason}",
                code="outside_hours" if theirs else "tool_not_on_list",
                details={"tool": payload.name},
                http_status_code=403,
            ),
        )


def _compile(rule: AllowRule) -> _Compiled:
    hours = _HOURS.fullmatch(rule.hours)
    span = None
    if hours is not None:
        first, second, third, fourth = map(int, hours.groups())
        span = time(first, second), time(third, fourth)
    days = frozenset(_DAYS.index(one) for one in rule.days) or frozenset(range(7))
    return _Compiled(
        compile_names(rule.tools), frozenset(rule.roles), frozenset(rule.teams), days, span
    )


def _is_time(rule: _Compiled, now: datetime) -> bool:
    if rule.hours is None:
        return now.weekday() in rule.days
    start, end = rule.hours
    at = now.time()
    if start <= end:
        return now.weekday() in rule.days and start <= at < end
    if at >= start:
        return now.weekday() in rule.days
    return at < end and (now.weekday() - 1) % 7 in rule.days


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone; write one such as Europe/Vienna") from error
