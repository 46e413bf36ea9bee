"""The delegation slot: the chain of parties that passed authority on, oldest first."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from kaged.base.clock import SystemClock
from kaged.pipeline.slots.base import Slot

_CLOCK = SystemClock()


def _now() -> datetime:
    # Plugins build hops with the default timestamp inside their own code, where no clock of the
    # host can be passed in.
    return datetime.fromtimestamp(_CLOCK.now_ms() / 1000, tz=UTC)


def _age_seconds(start: datetime) -> float:
    aware = start if start.tzinfo else start.replace(tzinfo=UTC)
    return (_now() - aware).total_seconds()


class DelegationHop(Slot):
    """One step of a delegation: who acts, towards whom, with which scopes and for how long."""

    subject_id: str
    subject_type: str
    audience: str | None = None
    scopes_granted: tuple[str, ...] = ()
    timestamp: datetime = Field(default_factory=_now)
    ttl_seconds: int | None = None
    strategy: str | None = None
    from_cache: bool = False


class DelegationExtension(Slot):
    """The chain and what follows from it; `depth` and `delegated` are derived by the host."""

    chain: tuple[DelegationHop, ...] = ()
    depth: int = 0
    origin_subject_id: str | None = None
    actor_subject_id: str | None = None
    delegated: bool = False
    age_seconds: float = 0.0

    def with_new_hop(self, hop: DelegationHop) -> DelegationExtension:
        """Return a new extension whose chain ends with `hop`."""
        age = _age_seconds(self.chain[0].timestamp) if self.chain else 0.0
        chain = (*self.chain, hop)
        return DelegationExtension(
            chain=chain,
            depth=len(chain),
            origin_subject_id=self.origin_subject_id or hop.subject_id,
            actor_subject_id=hop.subject_id,
            delegated=True,
            age_seconds=age,
        )
