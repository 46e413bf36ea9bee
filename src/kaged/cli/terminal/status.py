"""`RunStatus`: what the line at the bottom says: model, window, cost, what the cage allows."""

from __future__ import annotations

from typing import Any, Final

from kaged.cli.output import one_line

THOUSAND: Final = 1000


class RunStatus:
    """What is known of the agent that is talked to. Kept over the runs of a conversation."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._ended_usd = 0.0
        self._run_usd = 0.0
        self.model = ""
        self.cage = ""
        self.tokens = 0
        self.context_tokens = 0
        self.steps = 0

    def take(self, event: dict[str, Any]) -> None:
        """Take note of an event."""
        name, data = event["name"], event["data"]
        if name == "run.started":
            self._ended_usd += self._run_usd
            self._run_usd = 0.0
        elif name == "turn.ended":
            self._run_usd = float(data.get("cost_usd") or self._run_usd)
        elif name == "run.ended":
            usage = data.get("usage") or {}
            self._run_usd = float(usage.get("cost_usd") or self._run_usd)
        elif name == "turn.started" and data.get("agent") == self._agent:
            self.steps += 1
            self.model = one_line(data.get("model") or "")
            self.cage = one_line(data.get("cage") or "")
            self.tokens = int(data.get("tokens") or 0)
            self.context_tokens = int(data.get("context_tokens") or 0)

    @property
    def cost_usd(self) -> float:
        """What all of it cost, as far as prices are known."""
        return self._ended_usd + self._run_usd

    @property
    def window(self) -> str:
        """How full the window is."""
        if not self.context_tokens:
            return ""
        share = 100 * self.tokens / self.context_tokens
        return f"{share:.0f}% of {short_count(self.context_tokens)}"

    def parts(self) -> list[str]:
        """Return what is known, the most important first."""
        cost = f"${self.cost_usd:.4f}" if self.cost_usd else ""
        return [one for one in (self.model, self.window, cost, self.cage) if one]


def short_count(number: int) -> str:
    """Return a number of tokens as people say it: 950, 12k, 1.5M."""
    if number < THOUSAND:
        return str(number)
    if number < THOUSAND * THOUSAND:
        return f"{number / THOUSAND:.0f}k"
    return f"{number / THOUSAND / THOUSAND:.1f}M"


def short_time(seconds: float) -> str:
    """Return a time as people say it: 8s, 2m05s, 1h07m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
