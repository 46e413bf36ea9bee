"""`CallQuotas`: how often a tool may be called, where the operator sets a limit. Off by default."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.config.toolrules import glob_matches
from kaged.config.toolsettings import QuotaSpan
from kaged.tools.context import ToolCallContext
from kaged.tools.definition import ToolDefinition
from kaged.tools.errors import QuotaExceeded

MAX_COUNTERS: Final = 10_000  # the longest unused are forgotten first
_MINUTE_S: Final = 60.0

_Key: TypeAlias = "tuple[int, str, str]"


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """At most `limit` calls of the tools that `pattern` matches, per agent and span."""

    pattern: str
    limit: int
    span: QuotaSpan


@dataclass(slots=True)
class _Counter:
    count: int
    since_s: float


class CallQuotas:
    """Counts calls and refuses the one too many."""

    def __init__(self, rules: Iterable[QuotaRule], clock: Clock) -> None:
        self._rules = tuple(rules)
        self._clock = clock
        self._counters: OrderedDict[_Key, _Counter] = OrderedDict()

    def require(self, definition: ToolDefinition, context: ToolCallContext) -> None:
        """Count a call, or refuse it.

        Raises:
            QuotaExceeded: a rule's limit is reached.
        """
        matching = [
            (at, rule)
            for at, rule in enumerate(self._rules)
            if glob_matches(rule.pattern, definition.name)
        ]
        counters = [(rule, self._counter(at, rule, context)) for at, rule in matching]
        for rule, counter in counters:
            if counter.count >= rule.limit:
                per = "per minute" if rule.span is QuotaSpan.MINUTE else f"per {rule.span}"
                raise QuotaExceeded(
                    f"{definition.name}: the limit of {rule.limit} calls {per} is reached",
                    fix="do without it, or finish; the operator sets the limit",
                    detail=f"quota:{rule.pattern}:{rule.limit}/{rule.span}",
                )
        for _, counter in counters:
            counter.count += 1

    def _counter(self, at: int, rule: QuotaRule, context: ToolCallContext) -> _Counter:
        scope = context.run_id if rule.span is QuotaSpan.RUN else context.session_id
        key = (at, scope, context.caller)
        now_s = self._clock.monotonic_s()
        counter = self._counters.get(key)
        if counter is None or (
            rule.span is QuotaSpan.MINUTE and now_s - counter.since_s >= _MINUTE_S
        ):
            counter = self._counters[key] = _Counter(0, now_s)
        self._counters.move_to_end(key)
        if len(self._counters) > MAX_COUNTERS:
            self._counters.popitem(last=False)
        return counter
