"""`LoopWorkflows`: carries workflows out, each as a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.workflows import Workflow, WorkflowStep
from kaged.kernel.identity import Actor
from kaged.sessions.driver import SessionDriver
from kaged.sessions.run_options import kept_options
from kaged.sessions.run_values import RunEnd
from kaged.sessions.transcript import Transcript
from kaged.store.agent_run_rows import AgentRunRecord, AgentRunRows, AgentRunStatus, RunCause
from kaged.store.run_rows import RunRecord
from kaged.store.session_rows import SessionKind
from kaged.store.work_errors import SessionExists
from kaged.toolbox.project.workflows import INTERRUPTED

STEP_RUNS_LIMIT = 10_000
"""How many runs of a workflow's session are looked at to find out how far it came."""


@dataclass(eq=False)
class LoopWorkflows:
    """The workflow runner of daemons that have an agent loop."""

    driver: Callable[[], SessionDriver]
    transcript: Transcript
    runs: AgentRunRows
    root_of: Callable[[str], str]

    async def run(
        self, run: RunRecord, workflow: Workflow, identity: Actor | None = None
    ) -> JsonValue:
        """Do what the workflow says, step by step; the last message is the result.

        A step that asks the operator waits for the answer, within the time of the workflow; if a
        daemon before this one asked, the steps go on from that one.

        Raises:
            KagedError: `workflow_failed`; a step failed, with the reason in its message.
            KagedError: the first step could not be started.
        """
        # It exists already when a daemon before this one began it.
        with contextlib.suppress(SessionExists):
            await self.transcript.create(
                run.project_id,
                kind=SessionKind.WORKFLOW,
                # Where a project lies on the machine is the operator's to know.
                cwd="." if _is_person(identity) else self.root_of(run.project_id),
                model=None,
                title=f"workflow {run.workflow_name}",
                session_id=run.run_id,
                operator_id=run.invoker_id,
            )
        driver = self.driver()
        steps = messages_of(workflow, run.inputs)
        result: JsonValue = None
        try:
            before = await self._before(run)
            if before:
                result = _said(await self._end(driver, before[0].id))
                steps = steps[sum(one.cause is RunCause.WORKFLOW for one in before) :]
            for agent, message in steps:
                begun = await self._first(run)
                if begun is not None:
                    # Each step anew: the operator may have taken back what the first one was let.
                    identity = await driver.admit(kept_options(begun).kept, run.project_id)
                run_id = await driver.send(
                    run.run_id,
                    message,
                    operator=run.invoker_id,
                    agent=agent,
                    cause=RunCause.WORKFLOW,
                    identity=identity,
                )
                result = _said(await self._end(driver, run_id))
        except asyncio.CancelledError:
            await driver.cancel(run.run_id)
            raise
        return result

    async def waits(self, run: RunRecord) -> bool:
        """Return whether the last thing that happened in a run is a pause for the operator."""
        before = await self._before(run, 1)
        return bool(before) and before[0].status is AgentRunStatus.PAUSED

    async def _before(
        self, run: RunRecord, limit: int = STEP_RUNS_LIMIT
    ) -> Sequence[AgentRunRecord]:
        """Return the runs of the workflow's session so far, newest first."""
        found, _ = await self.runs.page(run.run_id, limit, 0)
        return found

    async def _first(self, run: RunRecord) -> AgentRunRecord | None:
        """Return the run of the first step, in which whoever began the workflow acted."""
        before = await self._before(run)
        return before[-1] if before else None

    async def _end(self, driver: SessionDriver, run_id: str) -> RunEnd:
        """Wait for the end of a step, through all its pauses."""
        end = await driver.wait(run_id)
        while end.status is AgentRunStatus.PAUSED:
            end = await driver.follow(end)
        return end


def _is_person(identity: Actor | None) -> bool:
    return identity is not None and identity.is_person


def _said(end: RunEnd) -> JsonValue:
    if end.status is AgentRunStatus.INTERRUPTED:
        raise KagedError(INTERRUPTED, code="workflow_failed")  # as one says whose daemon was killed
    if end.status is not AgentRunStatus.COMPLETED:
        said = "" if end.error is None else f": {end.error.get('message')}"
        raise KagedError(
            f"the agent's run ended as {end.status.value}{said}", code="workflow_failed"
        )
    return {"text": end.text}


def messages_of(workflow: Workflow, inputs: JsonObject) -> Sequence[tuple[str, str]]:
    """Return who gets which message: the steps, or the description; the first has the inputs.

    In the text of a step `{{name}}` stands for an input.
    """
    steps: tuple[WorkflowStep, ...] = workflow.steps or ()
    if not steps:
        return [(workflow.agent, _with_inputs(workflow.description, inputs))]
    written: list[tuple[str, str]] = []
    for number, step in enumerate(steps):
        text = step.message
        for name, value in inputs.items():
            text = text.replace(f"{{{{{name}}}}}", _shown(value))
        written.append(
            (step.agent or workflow.agent, _with_inputs(text, inputs) if number == 0 else text)
        )
    return written


def _with_inputs(text: str, inputs: JsonObject) -> str:
    if not inputs:
        return text or "Carry out this workflow."
    listed = "\n".join(f"- {name}: {_shown(value)}" for name, value in inputs.items())
    return f"{text}\n\nInputs:\n{listed}".strip()


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
