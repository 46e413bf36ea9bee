"""`Budget`: how much a run may take; `Spending`: how much it took, its subagents included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kaged.base import Clock
from kaged.models.turn import Usage

MAX_DEPTH: Final = 8
"""How deep agents may call agents; a deeper tree is legal, but nobody gets that far."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one run, all optional: model steps, tokens in and out, seconds, money."""

    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    cost_usd: float | None = None


class Spending:
    """Counts what a run takes. Shared by the root agent and all agents that it sets to work."""

    __slots__ = ("_budget", "_clock", "_since_s", "steps", "usage")

    def __init__(self, budget: Budget, clock: Clock) -> None:
        self._budget = budget
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self.steps = 0
        self.usage = Usage()

    def add(self, usage: Usage) -> None:
        """Count one turn of a model."""
        self.steps += 1
        self.usage = self.usage.plus(usage)

    @property
    def left_s(self) -> float | None:
        """The seconds that are left; None when time does not matter."""
        limit = self._budget.seconds
        return None if limit is None else limit - (self._clock.monotonic_s() - self._since_s)

    def exceeded(self) -> str | None:
        """Return which limit is reached, in words; None while there is room for another step."""
        budget, usage = self._budget, self.usage
        tokens = usage.input_tokens + usage.output_tokens
        left_s = self.left_s
        if budget.steps is not None and self.steps >= budget.steps:
            return f"the budget of {budget.steps} model steps is used up"
        if budget.tokens is not None and tokens >= budget.tokens:
            return f"the budget of {budget.tokens} tokens is used up ({tokens})"
        if left_s is not None and left_s <= 0:
            return f"the budget of {budget.seconds:g} s is used up"
        if budget.cost_usd is not None and (usage.cost_usd or 0.0) >= budget.cost_usd:
            return f"the budget of {budget.cost_usd:g} USD is used up"
        return None
