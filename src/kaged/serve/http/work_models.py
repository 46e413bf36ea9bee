"""What the routes of issues, todos, workflows and interactions take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kaged.config.workflows import Invoker
from kaged.serve.http.models import ApiModel, PageOut, RequestBody
from kaged.store.interaction_rows import InteractionKind, InteractionStatus
from kaged.store.run_rows import RunStatus
from kaged.toolbox.project.answers import CheckpointDecision
from kaged.toolbox.project.issue_states import IssueStatus, UpdateKind, Visibility
from kaged.toolbox.project.texts import (
    BODY_LIMIT_BYTES,
    NOTE_LIMIT_CHARS,
    NUMBER_LIMIT,
    PHASE_LIMIT_CHARS,
    TITLE_LIMIT_CHARS,
    TODO_LIMIT_CHARS,
)
from kaged.toolbox.project.todo_list import TodoKind, TodoStatus
from kaged.toolbox.project.todos import ITEMS_LIMIT, TodoAction
from kaged.toolbox.project.uploads import FILES_LIMIT

Body = Annotated[str, Field(max_length=BODY_LIMIT_BYTES, description="Markdown, at most 16 KB.")]
Title = Annotated[str, Field(min_length=1, max_length=TITLE_LIMIT_CHARS)]
Seconds = Annotated[int, Field(description="Unix seconds.")]


class Total(ApiModel):
    """How long a list is in all."""

    total: Annotated[int, Field(description="How many there are on all pages.")]


# -- issues -------------------------------------------------------------------------------------


class IssueOut(ApiModel):
    """One issue, in short."""

    id: str
    number: int
    title: str
    status: IssueStatus
    assignment: str | None
    created_by: str
    created_at: Seconds
    updated_at: Seconds


class IssuesOut(PageOut[IssueOut], Total):
    """A page of issues, last changed first."""


class UpdateOut(ApiModel):
    """Something that was said about an issue or done to it."""

    id: str
    author: str
    kind: UpdateKind
    body: str | None
    metadata: dict[str, Any] | None
    visibility: Visibility
    created_at: Seconds


class IssueDetailOut(IssueOut):
    """One issue with its updates, oldest first."""

    body: str
    original_body: Annotated[str | None, Field(description="As it was before the first edit.")]
    resolved_at: int | None
    resolved_by: str | None
    updates: list[UpdateOut]
    updates_omitted: Annotated[int, Field(description="How many older updates are left out.")] = 0


class IssueIn(RequestBody):
    """A new issue."""

    title: Title
    body: Body


class IssueCreatedOut(ApiModel):
    """The issue that was filed."""

    id: str
    number: int
    status: Literal["open"]
    created_at: Seconds


class IssueEditIn(RequestBody):
    """What to change; at least one of them. `assignment` null means: nobody."""

    title: Title = ""
    body: Body = ""
    assignment: Annotated[
        str | None,
        Field(max_length=200, description="primary, workflow:<name>, session:<id> or null."),
    ] = None


class IssueEditedOut(ApiModel):
    """What was changed."""

    number: int
    updated_fields: list[str]
    updated_at: Seconds


class CommentIn(RequestBody):
    """A comment."""

    body: Annotated[Body, Field(min_length=1)]
    visibility: Visibility = Visibility.ALL


class CommentedOut(ApiModel):
    """The comment that was added."""

    update_id: str
    issue_number: int
    created_at: Seconds


class TransitionIn(RequestBody):
    """Where to move an issue. `resolved` and `rejected` need a comment."""

    to: IssueStatus
    comment: Body | None = None


class TransitionedOut(ApiModel):
    """The move that was made."""

    number: int
    from_: Annotated[IssueStatus, Field(alias="from")]
    to: IssueStatus
    updated_at: Seconds


class BindIn(RequestBody):
    """The issue that a session works on; null for none."""

    number: Annotated[int | None, Field(ge=1, le=NUMBER_LIMIT)]


class SessionOut(ApiModel):
    """One session."""

    id: str
    project_id: str
    kind: str
    status: Annotated[str, Field(description="idle, running, checkpoint (waits for you) or ended.")]
    detail: str | None
    issue_number: int | None


# -- todos --------------------------------------------------------------------------------------


class TodoOut(ApiModel):
    """One item of a list."""

    id: str
    content: str
    status: TodoStatus
    kind: TodoKind
    phase: str | None
    position: int


class TodosOut(ApiModel):
    """The todo list of an issue."""

    todos: list[TodoOut]
    markdown: str


class TodoActionIn(RequestBody):
    """An action on a todo list, as the tool `kaged.todo` has them."""

    action: TodoAction
    content: Annotated[
        str | None, Field(max_length=TODO_LIMIT_CHARS, description="The task, by its text.")
    ] = None
    items: Annotated[
        list[Annotated[str, Field(max_length=TODO_LIMIT_CHARS)]] | None,
        Field(max_length=ITEMS_LIMIT, description="set, add: the texts of the tasks."),
    ] = None
    phase: Annotated[str | None, Field(max_length=PHASE_LIMIT_CHARS)] = None
    kind: TodoKind | None = None
    text: Annotated[str | None, Field(max_length=NOTE_LIMIT_CHARS)] = None


# -- workflows ----------------------------------------------------------------------------------


class FileIn(RequestBody):
    """A file that comes with a request."""

    name: Annotated[str, Field(max_length=1000, description="What it is called.")]
    content_base64: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


Files = Annotated[
    dict[str, FileIn], Field(max_length=FILES_LIMIT, description="Files by field or input.")
]


class WorkflowOut(ApiModel):
    """One declared workflow."""

    name: str
    description: str
    inputs: Annotated[
        dict[str, dict[str, Any]],
        Field(description="By name: type, required, description, default (and values of enums)."),
    ]
    invokable_by: list[Invoker]
    timeout_seconds: int


class WorkflowsOut(ApiModel):
    """The workflows that a project declares."""

    workflows: list[WorkflowOut]
    count: int


class RunIn(RequestBody):
    """What a run is started with."""

    inputs: dict[str, Any] = Field(default_factory=dict)
    files: Files = Field(default_factory=dict)


class RunStartedOut(ApiModel):
    """The run that was started."""

    run_id: str
    workflow_name: str
    status: RunStatus
    created_at: Seconds


class RunOut(RunStartedOut):
    """The status of a run."""

    inputs: dict[str, Any]
    completed_at: int | None
    duration_ms: int | None
    error: str | None = None
    result: Any = None


class RunsOut(PageOut[RunOut], Total):
    """A page of runs, newest first."""


# -- interactions -------------------------------------------------------------------------------


class InteractionOut(ApiModel):
    """Something that an agent asked the operator."""

    request_id: str
    project_id: str
    session_id: str
    run_id: str
    caller: str
    kind: InteractionKind
    status: InteractionStatus
    payload: Annotated[
        dict[str, Any],
        Field(description="ask: questions; form: fields; checkpoint: message and detail."),
    ]
    answer: dict[str, Any] | None
    answered_by: str | None
    created_at: Seconds
    answered_at: int | None


class InteractionsOut(PageOut[InteractionOut], Total):
    """A page of interactions, newest first."""


class InteractionAnswerIn(RequestBody):
    """The operator's answer: `answers` (and `files`) for ask and form, `decision` otherwise."""

    answers: Annotated[
        dict[str, Any], Field(description="By question id or field name.", max_length=100)
    ] = Field(default_factory=dict)
    files: Files = Field(default_factory=dict)
    decision: CheckpointDecision | None = None
    text: Annotated[str | None, Field(max_length=65536)] = None
