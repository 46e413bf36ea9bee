"""`RunOptions`: what a run is started with, and `kept_options`: what another one goes on with."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.kernel.kept_actor import KeptActor
from kaged.store.agent_run_rows import AgentRunRecord
from kaged.tools.context import ROOT_CALLER

OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What whoever starts a run wants of it.

    It acts for `identity`. `kept` is what the store has of them, from when they were verified.
    """

    model: str | None = None
    max_steps: int | None = None
    operator: str = OPERATOR
    agent: str = ROOT_CALLER
    identity: Actor | None = None
    kept: KeptActor | None = None

    def as_json(self) -> JsonObject:
        """Write down what a run needs that goes on after this one."""
        return {
            "model": self.model,
            "max_steps": self.max_steps,
            "agent": self.agent,
            "actor": None if self.kept is None else self.kept.as_json(),
        }


def kept_options(run: AgentRunRecord) -> RunOptions:
    """Return what a run was started with. Nobody acts in it until they are let in again."""
    kept = run.started_with
    model, max_steps, agent = kept.get("model"), kept.get("max_steps"), kept.get("agent")
    return RunOptions(
        model if isinstance(model, str) else None,
        max_steps if isinstance(max_steps, int) else None,
        run.operator_id or OPERATOR,
        agent if isinstance(agent, str) else ROOT_CALLER,
        kept=KeptActor.from_json(kept.get("actor")),
    )


def verified_at_ms(run: AgentRunRecord) -> int | None:
    """Return when the person for whom a run acts was verified last; None where nobody is known."""
    found = KeptActor.from_json(run.started_with.get("actor"))
    return None if found is None else found.verified_at_ms
