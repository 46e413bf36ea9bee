"""What observers may answer, and how their words reach the prompt. Pure."""

from __future__ import annotations

from typing import cast

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Observed:
    """What the observers of an event said, in plugin order; injections are wrapped already."""

    inject: tuple[str, ...] = ()
    retain: tuple[str, ...] = ()

    def plus(self, other: Observed) -> Observed:
        """Add what the next plugin said."""
        return Observed(self.inject + other.inject, self.retain + other.retain)


def parse_observer_answer(plugin: str, answer: JsonValue, *, retain: bool) -> Observed | None:
    """Read an observer's answer; None when it has no legal shape (PH-HOOK-28).

    Every non-empty injection is wrapped, whatever delimiters the plugin put inside (PH-HOOK-17),
    so that prompt and audit log show who contributed what.
    """
    if answer is None:
        return Observed()
    if not isinstance(answer, dict):
        return None
    inject, kept = answer.get("inject"), answer.get("retain")
    if inject is not None and not isinstance(inject, str):
        return None
    if kept is not None and not (
        isinstance(kept, list) and all(isinstance(item, str) for item in kept)
    ):
        return None
    wrapped = (f"<plugin:{plugin}>{inject}</plugin:{plugin}>",) if inject else ()
    texts = tuple(cast("list[str]", kept)) if retain and kept else ()
    return Observed(wrapped, texts)
