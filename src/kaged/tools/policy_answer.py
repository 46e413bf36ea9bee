"""`policy_answer`: what the policy plugins said, as a value or as the error of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.tools.errors import PipelineRefused, ReportedError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from kaged.pipeline.hooked_call import HookOutcome


async def policy_answer(
    question: Awaitable[HookOutcome], *, undone: str = "the call was not made"
) -> HookOutcome:
    """Wait for the plugins; a no and a failure become errors, `undone` says of what.

    Raises:
        PipelineRefused: a plugin said no.
        ReportedError: a plugin failed whose failure ends the call, or the pipeline's file is
            faulty.
    """
    from kaged.pipeline.errors import (  # noqa: PLC0415 - loaded only with a pipeline
        PipelineNotReady,
        PluginError,
    )

    try:
        hook_outcome = await question
    except PluginError as error:
        # What a policy plugin trips over is the operator's business; the agent learns that it did.
        name = error.error.plugin_name
        raise ReportedError(error.code, f"the policy {name} failed, so {undone}") from error
    except PipelineNotReady as error:
        # Its message names the file that is faulty, which is what whoever reads it needs to know.
        raise ReportedError(error.code, str(error)) from error
    refusal = hook_outcome.refusal
    if refusal is not None:
        raise PipelineRefused(
            refusal.words,
            fix=refusal.fix,
            detail=hook_outcome.decision.detail,
            denied_by=hook_outcome.denied_by,
            wants_approval=hook_outcome.wants_approval,
            approver=hook_outcome.approver,
            told=hook_outcome.told,
        )
    return hook_outcome
