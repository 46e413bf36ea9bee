"""Denials in words, and `require`, which turns one into the error that carries them."""

from __future__ import annotations

from kaged.kernel.decision import CapabilityDenied, Decision
from kaged.kernel.describe.sentence import Sentence, SentenceSeverity


def not_allowed(what: str) -> str:
    """Return the words of every denial, `what` being what was missing."""
    return f"not allowed: {what}"


def operator_fix(remedy: str) -> str:
    """Return a remedy for readers who cannot apply it themselves; empty when there is none."""
    return f"the operator can change this: {remedy}" if remedy else ""


def describe_denial(decision: Decision) -> Sentence:
    """Return why a caller may not do something, and what would change that."""
    words = not_allowed(decision.detail) if decision.detail else f"denied by {decision.rule}"
    return Sentence(words, SentenceSeverity.WARNING, fix=decision.remedy)


def describe_policy_refusal(policy: str, reason: str, remedy: str = "") -> Sentence:
    """Return that a policy plugin ended a call, in its own words."""
    words = f"the policy {policy} refused: {reason}"
    return Sentence(words, SentenceSeverity.WARNING, fix=remedy)


def require(decision: Decision, sentence: Sentence | None = None) -> None:
    """Raise CapabilityDenied, or its subclass with this `code`, unless allowed.

    The message is `sentence`, or what `describe_denial` says.
    """
    if decision.allowed:
        return
    told = describe_denial(decision) if sentence is None else sentence
    raise _denial(decision.code)(
        told.words, fix=told.fix or None, rule=decision.rule, detail=decision.detail
    )


def _denial(code: str) -> type[CapabilityDenied]:
    # Packages above define their own refusals as subclasses; a code nobody has a class for is
    # still a denial, under the general code.
    kinds = [CapabilityDenied]
    for kind in kinds:
        if kind.code == code:
            return kind
        kinds.extend(kind.__subclasses__())
    return CapabilityDenied
