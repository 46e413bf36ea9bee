"""Who else hears of what happens in the pipeline: observers and the audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kaged.audit import AuditEvent
from kaged.pipeline.records import shorten

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.pipeline.discards import DiscardedChange
    from kaged.pipeline.plan import Step
    from kaged.pipeline.records import PluginViolation


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

    def plugin_failed(
        self, step: Step, code: str, cause: str, reason: str, request_id: str
    ) -> None:
        """Called when a plugin failed or timed out; `cause` is the code of what went wrong."""
        ...


class PipelineAudit:
    """Posts an event for every denial, every failure and every set of discarded changes.

    Names and counts only: no payload, no slot value, no header ever gets into an event.
    """

    def __init__(self, post: Callable[[AuditEvent], None]) -> None:
        self._post = post

    def changes_discarded(
        self, step: Step, discarded: tuple[DiscardedChange, ...], request_id: str
    ) -> None:
        """Write down which slots a plugin tried to change without the right to."""
        slots: JsonObject = dict(Counter(change.slot for change in discarded))
        self._post(
            AuditEvent(
                "pipeline.changes_discarded",
                {"plugin": step.name, "hook": step.hook, "slots": slots},
                request_id=request_id,
            )
        )

    def call_denied(self, step: Step, violation: PluginViolation | None, request_id: str) -> None:
        """Write down who said no."""
        self._post(
            AuditEvent(
                "pipeline.plugin_denied",
                {
                    "plugin": step.name,
                    "hook": step.hook,
                    "violation_code": "" if violation is None else shorten(violation.code),
                    "detail": "" if violation is None else shorten(violation.reason),
                    "mode": step.mode.value,
                },
                request_id=request_id,
            )
        )

    def plugin_failed(
        self, step: Step, code: str, cause: str, reason: str, request_id: str
    ) -> None:
        """Write down that a plugin failed or took too long."""
        data: JsonObject = {
            "plugin": step.name,
            "hook": step.hook,
            "failure": code,
            "cause": cause,
            "on_error": step.on_error.value,
            "detail": shorten(reason),
        }
        if code == "plugin_timeout":
            data["timeout_sec"] = step.timeout_s
        self._post(AuditEvent("pipeline.plugin_failed", data, request_id=request_id))
