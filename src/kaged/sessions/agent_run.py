"""`RunState` and `AgentRun`: a run under way, and one agent's place in it."""

from __future__ import annotations

from dataclasses import field

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.models.turn import Model
from kaged.sessions.entry import EntryRole
from kaged.sessions.lifecycle import SessionEvent
from kaged.sessions.messages import TokenGauge, WindowMessage, estimate_text
from kaged.sessions.model_view import ModelView
from kaged.sessions.run_values import Spending
from kaged.sessions.snapshot import AgentSnapshot, SessionSnapshot
from kaged.sessions.window import Window
from kaged.tools import ToolCallContext
from kaged.tools.context import by_inbox
from kaged.wire.context import WireContext

ASKED_CHARS = 4000
"""How much of what an agent was asked its calls tell."""

MEASURE = 1000
"""By what the correction of estimates is found out."""

DELEGATION_MARK = "#"
"""Between an agent's path and the call that set it to work, in the name of its window."""


def shortened(asked: str) -> str:
    """Return what calls tell of what an agent was asked."""
    return asked[:ASKED_CHARS]


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How far an agent came: done with its last message, or stopped because the session waits."""

    paused: bool
    text: str = ""
    finish_reason: str = "stop"


@dataclass(slots=True)
class RunState:
    """One drive of the loop in a session, shared by all agents that take part.

    `pauses` maps the calls that asked the operator to what they asked; `waiting` are all calls
    that stay open until the answer is there, those of agents above the one that asked included.
    `goes_on` are the runs that this one goes on with, after an answer or a restart.
    """

    session_id: str
    run_id: str
    project_id: str
    operator_id: str
    snapshot: SessionSnapshot
    spending: Spending
    top: str = "primary"
    identity: Actor | None = None
    pauses: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])
    waiting: set[str] = field(default_factory=set[str])
    resumes_pause: bool = False
    goes_on: frozenset[str] = frozenset()

    @property
    def paused(self) -> bool:
        """Whether the session waits for the operator."""
        return bool(self.pauses)

    def pause(self, request_id: str) -> None:
        """Note that a call asked the operator; nothing more is done in this run."""
        self.pauses.setdefault(request_id, {})
        self.waiting.add(request_id)

    def asked(self, request_id: str, signal: JsonValue) -> None:
        """Take note of what a call asked, out of the signal that it gave the loop."""
        found = signal.get("interaction_requested") if isinstance(signal, dict) else None
        if request_id in self.pauses and isinstance(found, dict):
            self.pauses[request_id] = found


@dataclass(slots=True)
class AgentRun:
    """One agent at work in a run, with a window of its own.

    `window_key` names the window in the transcript: the agent's path, and for a subagent the call
    that set it to work, so that two tasks of one agent never mix. `cleared` holds what policies
    made of messages that they have seen, `entered` the folders whose instructions were looked for.
    `turns_before` were made in runs that this one goes on with.
    """

    run: RunState
    path: str
    window_key: str
    snapshot: AgentSnapshot
    model: Model
    window: Window
    system_prompt: str
    max_steps: int
    depth: int = 0
    steps: int = 0
    turns: int = 0
    turns_before: int = 0
    stuck_at: int = 0
    gauge: TokenGauge = field(default_factory=TokenGauge)
    cleared: dict[str, WindowMessage | None] = field(
        default_factory=dict[str, "WindowMessage | None"]
    )
    entered: set[str] = field(default_factory=set[str])
    view: ModelView = field(init=False)

    def __post_init__(self) -> None:
        """Begin without anything worked out."""
        self.view = ModelView(self.snapshot.names)

    @property
    def is_top(self) -> bool:
        """Whether this is the agent that the run was started with."""
        return self.depth == 0

    @property
    def request_tokens(self) -> int:
        """The estimate of everything that goes to the model, uncorrected."""
        fixed = estimate_text(self.system_prompt) + self.snapshot.spec_tokens
        return self.window.tokens + fixed

    @property
    def tokens(self) -> int:
        """The estimate of everything that goes to the model, corrected by what was counted."""
        return self.gauge.tokens(self.request_tokens)

    @property
    def room_tokens(self) -> int:
        """Half of what its model's window has free, in the units of the estimate."""
        scale = self.gauge.tokens(MEASURE) / MEASURE
        return max(0, int(self.model.context_tokens / scale) - self.request_tokens) // 2

    @property
    def turn(self) -> int | None:
        """The number of its turn since it was asked; None before the first."""
        return self.turns_before + self.turns or None

    @property
    def asked(self) -> str | None:
        """What the agent was asked last, shortened: by a person, or by the agent above it."""
        for message in reversed(self.window.messages):
            if message.role == EntryRole.USER:
                return shortened(message.text)
        return None

    def call_context(self, request_id: str) -> ToolCallContext:
        """Return the circumstances of one of its tool calls."""
        run = self.run
        return ToolCallContext(
            session_id=run.session_id,
            run_id=run.run_id,
            caller=self.path,
            project_id=run.project_id,
            project_root=run.snapshot.project_root,
            cage_policy=self.snapshot.policy,
            request_id=request_id,
            operator_id=run.operator_id,
            identity=run.identity,
            model=self.model.alias,
            turn=self.turn,
            asked=self.asked,
            reach_person=by_inbox,
        )

    def event(self, name: str, data: JsonObject) -> SessionEvent:
        """Make an event about this agent."""
        run = self.run
        return SessionEvent(
            name, run.session_id, run.project_id, run.run_id or None, {**data, "agent": self.path}
        )

    def hook_context(self, request_id: str) -> WireContext:
        """Return the circumstances of a plugin hook of this agent."""
        # Not at the top: only needed where a hook fires.
        from kaged.wire.context import WireContext  # noqa: PLC0415 - see above

        run = self.run
        return WireContext(
            request_id=request_id,
            operator_id=run.operator_id,
            project_id=run.project_id,
            agent_path=self.path,
            session_id=run.session_id,
        )


def child_key(path: str, request_id: str) -> str:
    """Return the key of a delegation's window."""
    return f"{path}{DELEGATION_MARK}{request_id}"
