"""Project tools on a real store, called through a real dispatcher as the agents of a project do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.readiness import always_ready
from fakes.store_home import StoreHome
from fakes.tool_lab import ToolLab
from kaged.audit import AuditEvent
from kaged.base import Clock, Ids, JsonObject, JsonValue, ManualClock, Tasks
from kaged.config.workflows import InputType, Invoker, Workflow, WorkflowInput
from kaged.inbox import Inbox
from kaged.kernel.identity import Actor
from kaged.store import Store
from kaged.store.run_rows import RunRecord
from kaged.toolbox.project import (
    InteractionService,
    IssueService,
    PersonUploads,
    ProjectWork,
    TodoService,
    WorkflowService,
    project_tools,
)
from kaged.tools import ToolCallContext, ToolError

PROJECT = "prj_1"  # the one of `ToolLab`
SESSION = "ses_1"

WORKFLOWS = {
    "deploy": Workflow(
        description="Build and deploy the project to production.",
        inputs={
            "branch": WorkflowInput(
                type=InputType.STRING, required=True, description="Git branch to deploy."
            ),
            "dry_run": WorkflowInput(type=InputType.BOOLEAN, default=False),
            "level": WorkflowInput(type=InputType.ENUM, values=("low", "high")),
        },
        timeout_seconds=600,
    ),
    "report": Workflow(
        description="Tell guests how things are.",
        invokable_by=(Invoker.OPERATOR, Invoker.GUEST),
        timeout_seconds=5,
    ),
    "import": Workflow(
        inputs={"table": WorkflowInput(type=InputType.FILE, required=True)},
    ),
    "annotate": Workflow(inputs={"picture": WorkflowInput(type=InputType.FILE)}),
}


class SampleProjects:
    """Two loaded projects with the same workflows."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def workflows(self, project_id: str) -> Mapping[str, Workflow]:
        return WORKFLOWS if project_id in {PROJECT, "prj_2"} else {}

    def root(self, project_id: str) -> str:
        assert project_id == PROJECT
        return str(self._root)


class GatedRunner:
    """Carries runs out when the test says so. `fails_with` makes the next ones fail.

    `when_cancelled` is what a run does instead of ending: it returns or raises something else.
    """

    def __init__(self) -> None:
        self.started: list[RunRecord] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled: list[str] = []
        self.result: JsonValue = {"ok": True}
        self.fails_with: Exception | None = None
        self.waiting: set[str] = set()
        self.when_cancelled: Callable[[], JsonValue] | None = None

    async def run(
        self, run: RunRecord, workflow: Workflow, identity: Actor | None = None
    ) -> JsonValue:
        assert workflow is WORKFLOWS[run.workflow_name]
        self.started.append(run)
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(run.run_id)
            if self.when_cancelled is not None:
                return self.when_cancelled()
            raise
        if self.fails_with is not None:
            raise self.fails_with
        return self.result

    async def waits(self, run: RunRecord) -> bool:
        return run.run_id in self.waiting


class WorkLab:
    """The four desks, their tools, and everything that was announced to the operator."""

    def __init__(
        self, root: Path, store: Store, clock: Clock, ids: Ids, *, has_runner: bool = True
    ) -> None:
        self.root = root
        self.store = store
        self.clock = clock
        self.runner = GatedRunner()
        self.failures: list[BaseException] = []
        self.tasks = Tasks("work", lambda _, error: self.failures.append(error))
        self.announced: list[tuple[str, JsonObject]] = []
        self.recorded: list[AuditEvent] = []
        self.loop_runs = False
        self.answered: list[str] = []
        source, uploads = SampleProjects(root), PersonUploads(root / "uploads")
        self.inbox = Inbox(
            store.inbox,
            record=self._record,
            post=self.recorded.append,
            announce=lambda name, data: self.announced.append((name, data)),
            clock=clock,
        )
        self.work = ProjectWork(
            issues=IssueService(store, source.workflows),
            todos=TodoService(store, ids),
            workflows=WorkflowService(
                store,
                source,
                clock=clock,
                ids=ids,
                tasks=self.tasks,
                ready=always_ready,
                uploads=uploads,
            ),
            interactions=InteractionService(
                store, self.inbox, ids=ids, root_of=source.root, uploads=uploads
            ),
            uploads=uploads,
        )
        if has_runner:
            self.work.workflows.connect(self.runner)
        self.work.interactions.connect(self._takes_over, self._on_answered)
        self.lab = ToolLab(root, project_tools(self.work), clock=clock, session_id=SESSION)
        self.audit = self.lab.audit

    async def call(self, name: str, /, **params: Any) -> Any:
        """Call a tool as the root agent; returns its result or raises its ToolError."""
        return await self.lab.call_with(name, params)

    async def call_with(self, name: str, params: Any, **changes: Any) -> Any:
        """Call a tool with any params; `changes` are fields of the context."""
        return await self.lab.call_with(name, params, **changes)

    async def refusal(self, name: str, /, **params: Any) -> ToolError:
        """Make a call that must fail, and return its error."""
        return await self.lab.refusal_with(name, params)

    async def refusal_with(self, name: str, params: Any, **changes: Any) -> ToolError:
        """Make a call with any params that must fail, and return its error."""
        return await self.lab.refusal_with(name, params, **changes)

    async def _record(self, event: AuditEvent) -> None:
        self.recorded.append(event)

    def _takes_over(self, context: ToolCallContext) -> bool:
        return self.loop_runs

    async def _on_answered(self, record: Any) -> None:
        self.answered.append(record.request_id)

    def other(self, caller: str) -> ToolLab:
        """Return a dispatcher with the same tools for another agent."""
        return ToolLab(self.root, project_tools(self.work), caller=caller, clock=self.clock)

    async def file(self, title: str = "A title", body: str = "A body") -> int:
        """File an issue as the root agent; returns its number."""
        made = await self.call("kaged.issue", action="create", title=title, body=body)
        return int(made["number"])

    async def bound(self, *items: str) -> str:
        """Bind the session to a new issue with these todos; returns the issue's id."""
        number = await self.file()
        await self.store.sessions.ensure(SESSION, PROJECT)
        await self.store.sessions.bind(PROJECT, SESSION, number)
        if items:
            await self.call("kaged.todo", action="set", items=list(items))
        return await self.work.todos.issue_id(PROJECT, number)

    async def status_of(self, number: int) -> str:
        return str((await self.call("kaged.issue", action="get", number=number))["status"])


async def until(done: Callable[[], bool]) -> None:
    """Let other tasks and threads go on until something is so."""
    loop = asyncio.get_running_loop()
    while not done():
        step = loop.create_future()
        loop.call_soon(step.set_result, None)
        await step
        await asyncio.to_thread(lambda: None)


@asynccontextmanager
async def work_lab(
    root: Path, clock: ManualClock, ids: Ids, *, has_runner: bool = True
) -> AsyncGenerator[WorkLab]:
    """Open a store below `root` and the tools on it."""
    project = root / "project"
    project.mkdir(exist_ok=True)
    home = StoreHome(root, clock, ids)
    lab = WorkLab(project, await home.store(), clock, ids, has_runner=has_runner)
    try:
        yield lab
    finally:
        await lab.tasks.close()
        await home.close()


__all__ = ["PROJECT", "SESSION", "WORKFLOWS", "GatedRunner", "WorkLab", "until", "work_lab"]
