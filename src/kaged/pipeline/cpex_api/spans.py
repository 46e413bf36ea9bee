"""Spans of an observability provider around chains and plugins, when a trace is current."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kaged.pipeline.chain import Accepted, Chain, TraceEnd
    from kaged.pipeline.plan import Step
    from kaged.pipeline.slots import Extensions

current_trace_id: ContextVar[str | None] = ContextVar("current_trace_id", default=None)


class ObservabilityProvider(Protocol):
    """Keeps spans."""

    def start_span(
        self,
        trace_id: str,
        name: str,
        kind: str = "internal",
        resource_type: str | None = None,
        resource_name: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> str | None:
        """Begin a span and return its id."""
        ...

    def end_span(
        self, span_id: str | None, status: str = "ok", attributes: dict[str, Any] | None = None
    ) -> None:
        """End a span."""
        ...


class NullObservability(ObservabilityProvider):
    """Keeps nothing: the methods of the protocol do nothing."""


class SpanTracer:
    """Writes one span per plugin while a trace is current."""

    def __init__(self, provider: ObservabilityProvider) -> None:
        self._provider = provider

    def step_began(self, step: Step, chain: Chain, given: Any, view: Extensions | None) -> TraceEnd:
        """Begin the span of one plugin."""
        del chain, given, view
        trace_id = current_trace_id.get()
        if trace_id is None:
            return _nobody
        span = self._provider.start_span(
            trace_id=trace_id,
            name=f"plugin.execute.{step.name}",
            kind="internal",
            resource_type="plugin",
            resource_name=step.name,
            attributes={
                "plugin.name": step.name,
                "plugin.uuid": step.plugin_id,
                "plugin.mode": str(step.mode),
                "plugin.priority": step.priority,
                "plugin.timeout": step.timeout_s,
            },
        )

        def end(accepted: Accepted | None, error: BaseException | None) -> None:
            attributes = None
            if error is None:
                attributes = {
                    "plugin.had_violation": accepted is not None and accepted.violation is not None,
                    "plugin.modified_payload": accepted is not None
                    and accepted.payload is not None,
                }
            status = "ok" if error is None else "error"
            self._provider.end_span(span_id=span, status=status, attributes=attributes)

        return end


def _nobody(accepted: Accepted | None, error: BaseException | None) -> None:
    del accepted, error
