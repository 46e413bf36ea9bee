"""What the host takes of a plugin's answer: each field read once, checked, copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from kaged.base import KagedError
from kaged.pipeline.edits import accept_payload, apply_policy
from kaged.pipeline.merge import merge_extensions
from kaged.pipeline.payloads import PluginPayload
from kaged.pipeline.results import PluginResult, PluginViolation
from kaged.pipeline.taken import Taken

if TYPE_CHECKING:
    from kaged.pipeline.chain import Chain
    from kaged.pipeline.merge import DiscardedChange
    from kaged.pipeline.plan import Step
    from kaged.pipeline.slots import Extensions

MAX_RETRY_DELAY_MS = 24 * 60 * 60 * 1000


class ForeignResult(KagedError):
    """A hook returned something that is not a result, or a result with fields of wrong types."""

    code: ClassVar[str] = "pipeline_foreign_result"


def take(step: Step, chain: Chain, given: Any, answer: Any) -> Taken | Extensions | None:
    """Check an answer and copy the allowed part of it; None for a plain allow without edits.

    Merged extensions come back as they are when the answer has nothing else: that is what most
    plugins that change something change.

    Raises:
        ForeignResult: the answer is not a result, or a field of it has a wrong type.
        TierViolationError, ForeignExtensions, ForeignPayload: the edit cannot be taken; then
            nothing of the answer counts.
    """
    if answer is None:
        return None
    if not isinstance(answer, PluginResult):
        raise _foreign(step, type(answer).__name__)
    # Below any override: what the object holds is what differs from a plain allow.
    stated = _state_of(answer)
    if not stated:
        return None
    if len(stated) == 1 and step.may_edit and "modified_extensions" in stated:
        discarded: list[DiscardedChange] = []
        own = chain.extensions
        merged = merge_extensions(
            own, stated["modified_extensions"], step.rights, step.name, discarded
        )
        if not discarded:
            return None if merged is own else merged
        return _edited(own, merged, discarded, Taken())
    taken = Taken()
    if "continue_processing" in stated:
        _take_denial(step, stated, taken)
    if "metadata" in stated or "retry_delay_ms" in stated:
        _take_remarks(step, stated.get("metadata"), stated.get("retry_delay_ms", 0), taken)
    if not step.may_edit or (taken.denied and step.may_deny):
        return taken
    if not taken.denied:
        discarded = []
        own = chain.extensions
        edited = stated.get("modified_extensions")
        merged = merge_extensions(own, edited, step.rights, step.name, discarded)
        _edited(own, merged, discarded, taken)
    payload = stated.get("modified_payload")
    if payload is not None:
        taken.payload = _take_payload(step, chain, given, payload)
    return taken if taken.__dict__ else None


_state_of: Callable[[PluginResult[Any]], dict[str, Any]] = vars(PluginResult)["__dict__"].__get__


def _edited(
    own: Extensions | None,
    merged: Extensions | None,
    discarded: list[DiscardedChange],
    taken: Taken,
) -> Taken:
    if merged is not own:
        taken.extensions = merged
    if discarded:
        taken.discarded = tuple(sorted(discarded, key=_slot_of))
    return taken


def _take_denial(step: Step, stated: dict[str, Any], taken: Taken) -> None:
    allow = stated["continue_processing"]
    if type(allow) is not bool:
        raise _foreign(step, "a result whose continue_processing is not a bool")
    if allow:
        return
    taken.denied = True
    taken.denial_metadata = stated.get("denial_metadata")
    violation = stated.get("violation")
    if violation is not None:
        if not isinstance(violation, PluginViolation):
            raise _foreign(step, "a result whose violation is not a PluginViolation")
        # Not the object's own method: a subclass could blame somebody else.
        taken.violation = PluginViolation.for_host(violation, step.name)


def _take_remarks(step: Step, metadata: object, delay: object, taken: Taken) -> None:
    if metadata:
        if not isinstance(metadata, dict):
            raise _foreign(step, "a result whose metadata is not a dict")
        taken.metadata = metadata
    if type(delay) is not int or not 0 <= delay <= MAX_RETRY_DELAY_MS:
        raise _foreign(step, "a result whose retry_delay_ms is not a sensible number")
    taken.retry_delay_ms = delay


def _take_payload(step: Step, chain: Chain, given: Any, returned: object) -> Any:
    edited = accept_payload(chain.payload, returned, chain.plan.kind, step.name)
    policy = chain.plan.policy
    if (
        policy is not None
        and isinstance(edited, PluginPayload)
        and type(edited) is type(chain.payload)
    ):
        edited, _refused = apply_policy(given, edited, policy, chain.payload)
    return edited


def _slot_of(change: DiscardedChange) -> str:
    return change.slot


def _foreign(step: Step, what: str) -> ForeignResult:
    return ForeignResult(
        f"hook {step.hook!r} of plugin {step.name!r} returned {what}",
        fix="return a PluginResult, or None for no change",
        plugin=step.name,
        hook=step.hook,
    )


__all__ = ["ForeignResult", "take"]
