"""`build_project_work`: issues, todos, workflows and interactions, put together for the daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec

from kaged.app.projects import ProjectNotFound
from kaged.base import Clock, Ids, JsonObject, Tasks
from kaged.config.agents import AgentTree
from kaged.config.workflows import Workflow
from kaged.events import EventHub
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

P = ParamSpec("P")

ATTENTION_TOPIC = "attention"


class WorkProjects:
    """The loaded projects, as far as their work needs them."""

    def __init__(self) -> None:
        self._trees: dict[str, AgentTree] = {}

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take note of a project, or of its files read anew."""
        self._trees[project_id] = tree

    def project_unloaded(self, project_id: str) -> None:
        """Forget a project."""
        self._trees.pop(project_id, None)

    def workflows(self, project_id: str) -> Mapping[str, Workflow]:
        """Return the workflows that a project declares; none while its files cannot be used."""
        tree = self._trees.get(project_id)
        return {} if tree is None else tree.project.workflows

    def root(self, project_id: str) -> str:
        """Return the folder of a project. Raises ProjectNotFound."""
        tree = self._trees.get(project_id)
        if tree is None:
            raise ProjectNotFound(
                f"The files of project {project_id} cannot be used.",
                fix="`kaged project check` shows what is wrong with them",
            )
        return str(tree.project.root)


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


def both(*each: Callable[P, None]) -> Callable[P, None]:
    """Make one callback of several; they are called in order."""

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        for one in each:
            one(*args, **kwargs)

    return call


def _announce(hub: EventHub, name: str, data: JsonObject) -> None:
    hub.publish(ATTENTION_TOPIC, name, data)
