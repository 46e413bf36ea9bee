"""What the host accepts of a policy plugin's answer: each field read once, checked, copied."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from kaged.base import KagedError
from kaged.pipeline.chain import Accepted, Chain
from kaged.pipeline.discards import DiscardedChange
from kaged.pipeline.edits import CLOSED, accept_payload, apply_policy, check_size, check_weight
from kaged.pipeline.merge import merge_by_rights
from kaged.pipeline.payloads.base import PluginPayload
from kaged.pipeline.plan import Step
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import MAX_RETRY_DELAY_MS, PluginResult


def accept_answer(step: Step, chain: Chain, given: Any, answer: Any) -> Accepted | None:
    """Check an answer and copy the allowed part of it; None for a plain allow without edits.

    Raises:
        KagedError: `pipeline_foreign_result`; the answer is not a result, or a field of it has a
            wrong type.
        TierViolationError, KagedError: `pipeline_foreign_extensions`, `pipeline_foreign_payload`;
            an edit cannot be accepted; then
            nothing of the answer counts.
        PayloadSizeError: its payload, custom slot or metadata is too large.
    """
    if answer is None:
        return None
    if not isinstance(answer, PluginResult):
        raise _foreign(step, type(answer).__name__)
    # Read below any override: what the object holds is what differs from a plain allow.
    stated = _state_of(answer)
    if not stated or stated == _ALLOW:
        return None
    accepted = Accepted()
    edited = stated.get("modified_extensions")
    said = len(stated) - ("modified_extensions" in stated)
    if said > 1 or (said and stated.get("continue_processing") is not True):
        _accept_rest(step, chain, given, stated, accepted)
    own = chain.extensions
    if edited is not None and own is not None and step.may_edit and not accepted.denied:
        discarded: list[DiscardedChange] = []
        merged = merge_by_rights(own, edited, step.rights, step.name, discarded)
        if merged is not own:
            if merged.custom is not own.custom:
                check_weight(merged.custom, "the custom slot of the answer")
            accepted.extensions = merged
        if discarded:
            accepted.discarded = tuple(sorted(discarded, key=attrgetter("slot")))
    return accepted


def _accept_rest(
    step: Step, chain: Chain, given: Any, stated: dict[str, Any], accepted: Accepted
) -> None:
    """Accept everything but extensions, as `accept_answer`."""
    if "continue_processing" in stated and _denies(step, stated["continue_processing"]):
        accepted.denied = True
        accepted.violation = _violation(step, stated.get("violation"))
        accepted.denial_metadata = stated.get("denial_metadata")
    if "metadata" in stated:
        accepted.metadata = _metadata(step, stated["metadata"])
        check_weight(accepted.metadata, "the metadata of the answer")
    if "retry_delay_ms" in stated:
        accepted.retry_delay_ms = _retry_delay(step, stated["retry_delay_ms"])
    edited = stated.get("modified_payload")
    if edited is not None and step.may_edit and not (accepted.denied and step.may_deny):
        accepted.payload = _payload(step, chain, given, edited)
        check_size(accepted.payload, "the payload of the answer")


_ALLOW = {"continue_processing": True}
_state_of: Callable[[PluginResult[Any]], dict[str, Any]] = vars(PluginResult)["__dict__"].__get__


def _denies(step: Step, allow: object) -> bool:
    if type(allow) is not bool:
        raise _foreign(step, "a result whose continue_processing is not a bool")
    return not allow


def _violation(step: Step, violation: object) -> PluginViolation | None:
    if violation is None:
        return None
    if not isinstance(violation, PluginViolation):
        raise _foreign(step, "a result whose violation is not a PluginViolation")
    # Not the object's own method: a subclass could blame somebody else.
    return PluginViolation.for_host(violation, step.name)


def _metadata(step: Step, metadata: object) -> dict[str, Any] | None:
    if not metadata:
        return None
    if not isinstance(metadata, dict):
        raise _foreign(step, "a result whose metadata is not a dict")
    return metadata


def _retry_delay(step: Step, delay_ms: object) -> int:
    if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_RETRY_DELAY_MS:
        raise _foreign(step, "a result whose retry_delay_ms is not a sensible number")
    return delay_ms


def _payload(step: Step, chain: Chain, given: Any, returned: object) -> Any:
    edited = accept_payload(chain.payload, returned, chain.plan.kind, step.name)
    policy = chain.plan.policy
    if policy is CLOSED:
        return None
    if (
        policy is not None
        and isinstance(edited, PluginPayload)
        and type(edited) is type(chain.payload)
    ):
        return apply_policy(given, edited, policy, chain.payload)
    return edited


def _foreign(step: Step, what: str) -> KagedError:
    return KagedError(
        f"hook {step.hook!r} of plugin {step.name!r} returned {what}",
        code="pipeline_foreign_result",
        fix="return a PluginResult, or None for no change",
        plugin=step.name,
        hook=step.hook,
    )
