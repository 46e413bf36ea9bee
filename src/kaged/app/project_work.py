"""`build_project_work`: issues, todos, workflows and interactions, put together for the daemon."""

from __future__ import annotations

from kaged.base import Clock, Ids, Tasks
from kaged.inbox import Inbox
from kaged.projects.readiness import Ready
from kaged.projects.work_projects import WorkProjects
from kaged.store import Store
from kaged.toolbox.project import (
    InteractionService,
    IssueService,
    PersonUploads,
    ProjectWork,
    TodoService,
    WorkflowService,
)


def build_project_work(
    store: Store,
    projects: WorkProjects,
    inbox: Inbox,
    *,
    clock: Clock,
    ids: Ids,
    tasks: Tasks,
    ready: Ready,
    uploads: PersonUploads,
) -> ProjectWork:
    """Build the services; the agent loop is connected to them when there is one."""
    return ProjectWork(
        issues=IssueService(store, projects.workflows),
        todos=TodoService(store, ids),
        workflows=WorkflowService(
            store, projects, clock=clock, ids=ids, tasks=tasks, ready=ready, uploads=uploads
        ),
        interactions=InteractionService(
            store, inbox, ids=ids, root_of=projects.root, uploads=uploads
        ),
        uploads=uploads,
    )
