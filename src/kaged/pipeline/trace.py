"""What did happen, step by step: which slots a plugin read, changed, was refused, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from kaged.base import Clock, Ids
from kaged.base.lazy_dataclass import dataclass
from kaged.config.problems import Problem
from kaged.pipeline.chain import Chain, TraceEnd
from kaged.pipeline.contexts import GlobalContext
from kaged.pipeline.errors import PluginError, PluginViolationError
from kaged.pipeline.kinds import PluginKind
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.pipeline import Pipeline
from kaged.pipeline.plan import Step
from kaged.pipeline.remote import NotSendable, to_json
from kaged.pipeline.slots import Extensions
from kaged.pipeline.traced_step import TracedStep, watch_step

MAX_STEPS = 10_000
"""Steps kept; the oldest are forgotten first."""


@dataclass(slots=True)
class Tracer:
    """Collects the steps of every chain that runs while it is in place."""

    clock: Clock
    steps: list[TracedStep] = field(default_factory=list[TracedStep])

    def step_began(self, step: Step, chain: Chain, given: Any, view: Extensions | None) -> TraceEnd:
        """Note what a plugin is given, and what it did with it when it ends."""
        del given
        return watch_step(self.clock, step, chain, view, self._keep)

    def _keep(self, step: TracedStep) -> None:
        if len(self.steps) >= MAX_STEPS:
            del self.steps[0]
        self.steps.append(step)


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What one call through a file's plugins did; `error` when a plugin's failure ended it."""

    file: str
    problems: tuple[Problem, ...]
    in_force: bool = False
    """Whether the file was sound, so that the call was made at all."""
    steps: tuple[TracedStep, ...] = ()
    allowed: bool = False
    violation: str | None = None
    error: str | None = None
    payload: Any = None
    extensions: Any = None


async def trace_file(
    path: Path,
    hook: str,
    payload: Mapping[str, Any],
    slots: Mapping[str, Any],
    clock: Clock,
    ids: Ids,
    *,
    kinds: Mapping[str, PluginKind] | None = None,
) -> TraceReport:
    """Run one made-up call through the plugins of a file and return what each of them did.

    `payload` and `slots` are plain data, as they would be written in JSON. The payload and
    extensions that came out are given as plain data too.

    Raises:
        ValueError: the payload or the slots do not fit the hook.
    """
    tracer = Tracer(clock)
    pipeline = Pipeline(clock, ids, kinds=kinds, tracer=tracer)
    try:
        report = await pipeline.load_file(path)
        made = TraceReport(report.file, report.problems)
        if not report.in_force:
            return made
        registry = HookRegistry()
        call: Any = (
            registry.json_to_payload(hook, dict(payload))
            if registry.is_registered(hook)
            else dict(payload)
        )
        before = Extensions.model_validate(dict(slots))
        try:
            result, _ = await pipeline.invoke_hook(
                hook, call, GlobalContext(ids.tagged("trace")), extensions=before
            )
        except (PluginError, PluginViolationError) as error:
            return replace(made, in_force=True, steps=tuple(tracer.steps), error=error.message)
        return replace(
            made,
            in_force=True,
            steps=tuple(tracer.steps),
            allowed=result.continue_processing,
            violation=None if result.violation is None else result.violation.reason,
            payload=_shown(result.modified_payload or call),
            extensions=_shown(result.modified_extensions or before),
        )
    finally:
        await pipeline.close()


def _shown(value: Any) -> Any:
    """Return what came out as JSON data; what has none is shown by its name."""
    try:
        return to_json(value)
    except NotSendable as error:
        return f"({error.message})"
