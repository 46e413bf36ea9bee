"""Who else hears of what happens in the pipeline: `PipelineObserver` and `StepTracer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kaged.pipeline.chain import Chain, TraceEnd
    from kaged.pipeline.merge import DiscardedChange
    from kaged.pipeline.plan import Step
    from kaged.pipeline.slots import Extensions
    from kaged.pipeline.violations import PluginViolation


class PipelineObserver(Protocol):
    """Who is told about what happens in the pipeline, apart from the caller."""

    def changes_discarded(
        self, step: Step, discarded: tuple[DiscardedChange, ...], request_id: str
    ) -> None:
        """Called when changes of a plugin were discarded."""
        ...

    def call_denied(self, step: Step, violation: PluginViolation | None, request_id: str) -> None:
        """Called when a plugin denied a call, or would have."""
        ...

    def plugin_failed(self, step: Step, code: str, reason: str, request_id: str) -> None:
        """Called when a plugin failed or timed out."""
        ...


class StepTracer(Protocol):
    """Who watches every single step; used by `kaged pipeline trace` and for spans."""

    def step_began(self, step: Step, chain: Chain, given: Any, view: Extensions | None) -> TraceEnd:
        """Called when a plugin is about to run, with its input; returns what to call at the end."""
        ...
