"""`AgentPort`: one agent as the MCP server needs it; `McpClientSession`: who is calling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from kaged.base import KagedError

if TYPE_CHECKING:
    from kaged.base import JsonObject, JsonValue
    from kaged.kernel.identity import Actor
    from kaged.tools.registry import RegisteredTool

MAX_OPEN_CALLS: Final = 32
"""Calls that one client may have running at a time."""


class TooManyCalls(KagedError):
    """An MCP client has as many calls running as it may."""

    code: ClassVar[str] = "mcp_too_many_calls"


class ResourceNotFound(KagedError):
    """The served agent has no such resource, or may not read it."""

    code: ClassVar[str] = "mcp_resource_not_found"


class PromptNotFound(KagedError):
    """The served agent has no such prompt."""

    code: ClassVar[str] = "mcp_prompt_not_found"


@dataclass(slots=True)
class McpClientSession:
    """One client's stay: the session and run that its calls belong to (AT-CTX-01).

    `client` is what the client calls itself: a claim, kept for the record.
    """

    id: str
    session_id: str
    run_id: str
    actor: Actor
    transport: str
    client: str = ""
    begun: bool = False
    open_calls: int = 0
    last_used_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool of the agent; `parameters` are without what the agent may not use of it."""

    entry: RegisteredTool
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class ListedResource:
    """Something the agent can read, by address."""

    uri: str
    name: str
    description: str
    mime_type: str = "application/json"
    size: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """What a resource holds: text, or bytes as base64."""

    uri: str
    mime_type: str
    text: str | None = None
    blob: str | None = None


class AgentPort(Protocol):
    """What the MCP server of one agent asks the daemon for."""

    @property
    def project_id(self) -> str:
        """The project."""
        ...

    @property
    def agent(self) -> str:
        """The agent's place in the tree."""
        ...

    @property
    def results_as_declared(self) -> bool:
        """Whether results are what tools declare; not when a policy plugin may change them."""
        ...

    def tools(self) -> Sequence[ListedTool]:
        """Return the tools that the agent has now. Raises ProjectNotFound, AgentNotFound."""
        ...

    async def call(
        self, client_session: McpClientSession, name: str, arguments: JsonObject
    ) -> JsonValue:
        """Make a call through dispatch. Raises ToolError."""
        ...

    async def resources(
        self, client_session: McpClientSession, cursor: str | None
    ) -> tuple[Sequence[ListedResource], str | None]:
        """Return a page of what the agent can read, and the cursor of the next."""
        ...

    async def read_resource(
        self, client_session: McpClientSession, uri: str
    ) -> Sequence[ResourceContent]:
        """Read one. Raises ResourceNotFound, or the refusal of a policy."""
        ...

    async def prompts(self, client_session: McpClientSession) -> Sequence[JsonObject]:
        """Return the prompts of outside servers that the agent may use."""
        ...

    async def get_prompt(
        self, client_session: McpClientSession, name: str, arguments: dict[str, str]
    ) -> JsonObject:
        """Fetch one. Raises PromptNotFound, or the refusal of a policy."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the agent's tools may have changed; returns what ends this."""
        ...

    def greet(self, client_session: McpClientSession) -> None:
        """Take note of a client's first request."""
        ...

    def leave(self, client_session: McpClientSession) -> None:
        """Let go of everything that belongs to a client's session and run."""
        ...


class AgentPorts(Protocol):
    """Finds the port of an agent."""

    def port(self, project_id: str, agent: str) -> AgentPort:
        """Return the port. Raises ProjectNotFound, AgentNotFound."""
        ...
