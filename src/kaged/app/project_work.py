"""`build_project_work`: issues, todos, workflows and interactions, put together for the daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kaged.base import Clock, Ids, JsonObject, Tasks
from kaged.events import EventHub
from kaged.projects.work_projects import WorkProjects
from kaged.store import Store
from kaged.store.interaction_rows import InteractionRecord
from kaged.toolbox.project import (
    InteractionService,
    IssueService,
    ProjectWork,
    TodoService,
    WorkflowRunner,
    WorkflowService,
)
from kaged.tools import ToolCallContext

ATTENTION_TOPIC = "attention"


async def _nobody(record: InteractionRecord) -> None:
    """Ignore an answer."""
    del record


def build_project_work(
    store: Store,
    projects: WorkProjects,
    hub: EventHub,
    *,
    clock: Clock,
    ids: Ids,
    tasks: Tasks,
    runner: Callable[[], WorkflowRunner | None] = lambda: None,
    takes_over: Callable[[ToolCallContext], bool] = lambda _context: False,
    on_answered: Callable[[InteractionRecord], Awaitable[None]] = _nobody,
) -> ProjectWork:
    """Build the services. `runner` returns what carries workflows out, once there is one.

    `takes_over` and `on_answered` are the agent loop's part in questions to the operator.
    """
    return ProjectWork(
        issues=IssueService(store, projects.workflows),
        todos=TodoService(store, ids),
        workflows=WorkflowService(
            store, projects, clock=clock, ids=ids, tasks=tasks, runner=runner
        ),
        interactions=InteractionService(
            store,
            ids=ids,
            root_of=projects.root,
            announce=lambda name, data: _announce(hub, name, data),
            takes_over=takes_over,
            on_answered=on_answered,
        ),
    )


def _announce(hub: EventHub, name: str, data: JsonObject) -> None:
    hub.publish(ATTENTION_TOPIC, name, data)
