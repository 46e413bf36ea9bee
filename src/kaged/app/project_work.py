"""`build_project_work`: issues, todos, workflows and interactions, put together for the daemon."""

from __future__ import annotations

from kaged.base import Clock, Ids, JsonObject, Tasks
from kaged.events import EventHub
from kaged.projects.work_projects import WorkProjects
from kaged.store import Store
from kaged.toolbox.project import (
    InteractionService,
    IssueService,
    ProjectWork,
    TodoService,
    WorkflowService,
)

ATTENTION_TOPIC = "attention"


def build_project_work(
    store: Store,
    projects: WorkProjects,
    hub: EventHub,
    *,
    clock: Clock,
    ids: Ids,
    tasks: Tasks,
) -> ProjectWork:
    """Build the services; the agent loop is connected to them when there is one."""
    return ProjectWork(
        issues=IssueService(store, projects.workflows),
        todos=TodoService(store, ids),
        workflows=WorkflowService(store, projects, clock=clock, ids=ids, tasks=tasks),
        interactions=InteractionService(
            store,
            ids=ids,
            root_of=projects.root,
            announce=lambda name, data: _announce(hub, name, data),
        ),
    )


def _announce(hub: EventHub, name: str, data: JsonObject) -> None:
    hub.publish(ATTENTION_TOPIC, name, data)
