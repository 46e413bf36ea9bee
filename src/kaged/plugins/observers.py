"""What observers may answer, and how their words reach the prompt. Pure."""

from __future__ import annotations

from typing import Final, cast

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass

INJECT_LIMIT_CHARS: Final = 100_000
NO_SHAPE: Final = "the answer has no legal shape"
RETAIN_LIMIT: Final = 1_000
"""What one plugin may add to a prompt or a note: all texts of `retain` together have as many
characters as `inject` may have."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the observers of an event said, in plugin order; injections are wrapped already."""

    inject: tuple[str, ...] = ()
    retain: tuple[str, ...] = ()

    def plus(self, other: Observed) -> Observed:
        """Add what the next plugin said."""
        return Observed(self.inject + other.inject, self.retain + other.retain)


def parse_observer_answer(plugin: str, answer: JsonValue, *, retain: bool) -> Observed | str:
    """Read an observer's answer; what is wrong when it has no legal shape (PH-HOOK-28).

    Every non-empty injection is wrapped, whatever delimiters the plugin put inside (PH-HOOK-17),
    so that prompt and audit log show who contributed what.
    """
    if answer is None:
        return Observed()
    if not isinstance(answer, dict):
        return NO_SHAPE
    inject, kept = answer.get("inject"), answer.get("retain")
    if inject is not None and not isinstance(inject, str):
        return NO_SHAPE
    if len(inject or "") > INJECT_LIMIT_CHARS:
        return f"it injects more than {INJECT_LIMIT_CHARS} characters"
    if kept is not None and not (
        isinstance(kept, list) and all(isinstance(item, str) for item in kept)
    ):
        return NO_SHAPE
    if kept and (
        len(kept) > RETAIN_LIMIT or sum(map(len, cast("list[str]", kept))) > INJECT_LIMIT_CHARS
    ):
        return f"it retains more than {RETAIN_LIMIT} texts or {INJECT_LIMIT_CHARS} characters"
    wrapped = (f"<plugin:{plugin}>{inject}</plugin:{plugin}>",) if inject else ()
    texts = tuple(cast("list[str]", kept)) if retain and kept else ()
    return Observed(wrapped, texts)
