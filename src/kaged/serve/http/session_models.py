"""What the routes of sessions take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kaged.serve.http.models import ApiModel, PageOut, RequestBody
from kaged.serve.http.work_models import Total
from kaged.sessions.entry import EntryKind, EntryRole
from kaged.store.agent_run_rows import AgentRunStatus, RunCause
from kaged.store.session_rows import SessionKind, SessionStatus
from kaged.store.tool_call_rows import ToolCallStatus

MESSAGE_LIMIT_CHARS = 500_000
PROMPT_LIMIT_CHARS = 100_000
TITLE_LIMIT_CHARS = 200
STEPS_LIMIT = 10_000

Moment = Annotated[str, Field(description="ISO 8601 in UTC.")]
EntryRef = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[0-9A-Za-z]+$")]
Alias = Annotated[str, Field(min_length=1, max_length=100)]


class SessionRowOut(ApiModel):
    """One session, in short."""

    id: str
    project_id: str
    kind: SessionKind
    status: Annotated[
        SessionStatus, Field(description="idle, running, checkpoint (waits for you) or ended.")
    ]
    detail: str | None
    title: str | None
    model: Annotated[str | None, Field(description="Its model's alias; null for the agent's own.")]
    entries: Annotated[int, Field(description="How many entries it shows, the header included.")]
    issue_bound: bool
    parent_session: Annotated[str | None, Field(description="What it was forked from.")]
    parent_entry: Annotated[str | None, Field(description="Up to and including which entry.")]
    current: Annotated[bool, Field(description="Whether clients of the project follow it.")]
    created_at: Moment
    updated_at: Moment


class SessionsOut(PageOut[SessionRowOut], Total):
    """A page of sessions, last used first."""


class SessionTreeOut(ApiModel):
    """All sessions of a project, every parent before its forks."""

    sessions: list[SessionRowOut]
    current: str | None


class SessionDetailOut(SessionRowOut):
    """One session with what its header says."""

    header: Annotated[
        dict[str, Any] | None, Field(description="cwd, model and system prompt it began with.")
    ]
    active_run: str | None
    pending: Annotated[
        list[Literal["switch", "fork_to", "fork"]],
        Field(description="Moves that were asked for and wait for the end of the run."),
    ]


class SessionIn(RequestBody):
    """A new session."""

    title: Annotated[str | None, Field(max_length=TITLE_LIMIT_CHARS)] = None
    model: Annotated[Alias | None, Field(description="An alias; null for the agent's own.")] = None
    system_prompt: Annotated[str, Field(max_length=PROMPT_LIMIT_CHARS)] = ""
    current: Annotated[bool, Field(description="Make it the project's current session.")] = True


class SessionEditIn(RequestBody):
    """What to change about a session."""

    title: Annotated[str, Field(max_length=TITLE_LIMIT_CHARS)]


class EntryOut(ApiModel):
    """One entry of a session."""

    id: str
    session_id: Annotated[str, Field(description="Whose it is; a fork shows its ancestors'.")]
    kind: EntryKind
    role: EntryRole | None
    agent: str
    run_id: str | None
    ts: Moment
    superseded_by: Annotated[
        str | None, Field(description="The compaction that took it out of the window.")
    ]
    content: dict[str, Any]


class EntriesOut(ApiModel):
    """Some entries, in order. `next_after` asks for the next ones; null behind the last."""

    items: list[EntryOut]
    next_after: str | None
    total: int


class HitOut(ApiModel):
    """An entry that was found."""

    session_id: str
    entry_id: str
    kind: EntryKind
    role: EntryRole | None
    agent: str
    ts: Moment
    snippet: str


class HitsOut(PageOut[HitOut], Total):
    """A page of entries that were found, newest first."""


class ForkIn(RequestBody):
    """Where to fork. Without `at` at the last entry."""

    at: Annotated[EntryRef | None, Field(description="An entry's id, or the beginning of it.")] = (
        None
    )
    switch: Annotated[bool, Field(description="Switch to the fork unless that is vetoed.")] = False


class MoveOut(ApiModel):
    """What became of a fork or switch.

    `pending`: a run is active, and the move is made when it has ended.
    """

    pending: bool
    session: SessionRowOut | None
    from_: Annotated[str | None, Field(alias="from")]
    current: Annotated[str | None, Field(description="The project's current session now.")]


class MessageIn(RequestBody):
    """Something to say to the agent."""

    text: Annotated[str, Field(min_length=1, max_length=MESSAGE_LIMIT_CHARS)]
    model: Alias | None = None
    max_steps: Annotated[int | None, Field(ge=1, le=STEPS_LIMIT)] = None
    agent: Annotated[
        str, Field(min_length=1, max_length=300, description="Which agent it is said to.")
    ] = "primary"
    queue: Annotated[
        bool,
        Field(
            description="If a run of yours is active, hand the message to it at the end of the"
            " agent's turn. Otherwise a message is refused while a run is active."
        ),
    ] = False


class RunStartOut(ApiModel):
    """A run that has begun. The words are on disk; the rest comes over the event stream."""

    run_id: str
    session_id: str
    queued: Annotated[bool, Field(description="Whether it waits for the end of a turn.")] = False


class CancelledOut(ApiModel):
    """Whether there was a run to cancel."""

    cancelled: bool


class CompactIn(RequestBody):
    """Which window to compact. With `dry_run` nothing is changed."""

    agent: Annotated[str, Field(min_length=1, max_length=200)] = "primary"
    dry_run: bool = False


class AgentRunOut(ApiModel):
    """One run of a session's root agent."""

    id: str
    session_id: str
    status: AgentRunStatus
    cause: RunCause
    model: str | None
    operator_id: Annotated[str | None, Field(description="For whom it acts.")]
    verified_at: Annotated[
        Moment | None,
        Field(
            description="When they were last verified: what a front end or provider said of them is"
            " as old as this. Null where nobody is known."
        ),
    ]
    steps: int
    usage: dict[str, Any]
    error: dict[str, Any] | None
    started_at: Moment
    ended_at: Moment | None


class AgentRunsOut(PageOut[AgentRunOut], Total):
    """A page of runs, newest first."""


class ToolCallOut(ApiModel):
    """One call of a tool. `params` are without secrets."""

    request_id: str
    session_id: str
    run_id: str
    caller: str
    tool_name: str
    tool_version: Annotated[
        str, Field(description="Which edition answered; empty while it runs, or if it is no tool.")
    ]
    schema_hash: Annotated[str, Field(description="The parameters that the tool had.")]
    params: Any
    status: ToolCallStatus
    result: Any
    error: dict[str, Any] | None
    started_at: Moment
    finished_at: Moment | None


class ToolCallsOut(PageOut[ToolCallOut], Total):
    """A page of tool calls, oldest first."""


class ImportedOut(ApiModel):
    """The session that was taken in."""

    session: SessionRowOut
    imported_from: Annotated[str, Field(description="Its id where it came from.")]
