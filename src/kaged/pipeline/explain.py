"""What would happen, as data: which plugins run for a hook, and what each sees and changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kaged.base import Clock, Ids
from kaged.base.lazy_dataclass import dataclass
from kaged.config.problems import Problem, Severity
from kaged.pipeline.kinds import PluginKind
from kaged.pipeline.pipeline import Pipeline
from kaged.pipeline.plan import Step
from kaged.pipeline.tiers import SLOT_POLICIES, visible_slots


@dataclass(frozen=True, slots=True)
class StepExplained:
    """One plugin on one hook, in words that a table can show."""

    order: int
    plugin: str
    kind: str
    mode: str
    on_error: str
    timeout_s: float
    conditional: bool
    switched_off: bool
    capabilities: tuple[str, ...]
    sees: tuple[str, ...]
    may_change: tuple[str, ...]
    may_deny: bool


@dataclass(frozen=True, slots=True)
class HookExplained:
    """One hook with its plugins in the order in which they run."""

    hook: str
    steps: tuple[StepExplained, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `kaged pipeline check` found: all problems, and what the file would do."""

    file: str
    problems: tuple[Problem, ...]
    hooks: tuple[HookExplained, ...]

    @property
    def sound(self) -> bool:
        """Return whether the file can be put in force."""
        return not any(problem.severity is Severity.ERROR for problem in self.problems)


def explain_pipeline(pipeline: Pipeline) -> tuple[HookExplained, ...]:
    """Return, for every hook in force, what runs in which order with which rights."""
    return tuple(
        HookExplained(
            hook, tuple(_explain(order, step) for order, step in enumerate(plan.steps, 1))
        )
        for hook, plan in sorted(pipeline.plans.items())
    )


async def check_file(
    path: Path, clock: Clock, ids: Ids, *, kinds: Mapping[str, PluginKind] | None = None
) -> CheckReport:
    """Load a file into a pipeline of its own, look at it, and throw it away.

    Plugin classes are imported and initialised, because half of all faults show only there.
    """
    pipeline = Pipeline(clock, ids, kinds=kinds, in_daemon=True)
    try:
        report = await pipeline.load_file(path)
        return CheckReport(report.file, report.problems, explain_pipeline(pipeline))
    finally:
        await pipeline.close()


def _explain(order: int, step: Step) -> StepExplained:
    changes = [slot.value for slot in SLOT_POLICIES if step.rights.may_write(slot)]
    if not step.may_edit:
        changes = []
    return StepExplained(
        order=order,
        plugin=step.name,
        kind=step.kind,
        mode=step.mode.value,
        on_error=step.on_error.value,
        timeout_s=step.timeout_s,
        conditional=step.matches is not None,
        switched_off=step.switch.off,
        capabilities=tuple(sorted(step.rights.capabilities)),
        sees=tuple(name for name, _ in visible_slots(step.rights)),
        may_change=("payload", *changes) if step.may_edit else (),
        may_deny=step.may_deny,
    )
