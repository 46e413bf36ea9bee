"""What goes to a language model and what comes back: `ModelRequest`, `ModelTurn`, `ModelEvent`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Literal, Protocol

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from kaged.models.vendor_parts import VendorParts

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call that a model asks for.

    `arguments` is None when what the model wrote is no JSON object; `raw` is then what it wrote.
    """

    id: str
    name: str
    arguments: JsonObject | None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Words of the operator or the host."""

    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Words of the person the agent works for."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A turn of the model: what it said, and the tools it called.

    `parts` are the vendor's marks on it, if it made any: it wants them back.
    """

    text: str = ""
    tool_calls: tuple[ModelToolCall, ...] = ()
    thinking: str = ""
    parts: VendorParts | None = None


@dataclass(frozen=True, slots=True)
class ToolResultMessage:
    """The outcome of one tool call."""

    call_id: str
    name: str
    content: str
    is_error: bool = False


ModelMessage = SystemMessage | UserMessage | AssistantMessage | ToolResultMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. `name` has only the letters that vendors allow."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn took. `cost_usd` is None when nobody knows the price."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None

    def plus(self, other: Usage) -> Usage:
        """Add what another turn took."""
        costs = [one for one in (self.cost_usd, other.cost_usd) if one is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            sum(costs) if costs else None,
        )


@dataclass(slots=True)
class Unfinished:
    """Counts what answers took that did not come to their end: canceled, or cut off."""

    usage: Usage = field(default_factory=Usage)

    def add(self, usage: Usage) -> None:
        """Count one of them."""
        self.usage = self.usage.plus(usage)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model: the window, and the tools that it may call.

    `agent` is the path of the agent that asks; vendors never see it, scripts go by it. Nor do they
    see project and session, in which models are found that a project's scripts provide. What is
    begun and not finished for it is counted in `unfinished`.
    """

    messages: Sequence[ModelMessage]
    tools: Sequence[ToolSpec] = ()
    settings: JsonObject = field(default_factory=dict)
    agent: str = "primary"
    project_id: str = ""
    session_id: str = ""
    unfinished: Unfinished = field(default_factory=Unfinished, compare=False)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """A model's whole answer."""

    message: AssistantMessage
    usage: Usage = Usage()
    finish_reason: FinishReason = "stop"
    model: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of what the model says, as it says it."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of what the model thinks aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class UsageSoFar:
    """What an attempt took up to here, as the vendor counts it. Seen by no caller of a model."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class TurnRetried:
    """The attempt failed and is made anew; what was streamed of it is void."""

    reason: str
    attempt: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The last event of a stream that went well."""

    turn: ModelTurn


ModelEvent = TextDelta | ThinkingDelta | TurnRetried | TurnFinished


class Model(Protocol):
    """A language model behind an alias."""

    @property
    def alias(self) -> str:
        """The name under `[models]`."""
        ...

    @property
    def context_tokens(self) -> int:
        """How many tokens its window holds."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Ask. The stream ends with `TurnFinished`, or raises a ModelError.

        Cancelling the iteration closes the connection.
        """
        ...
