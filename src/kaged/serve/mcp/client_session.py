"""`McpClientSession`: who is calling; what a served agent lists and reads, as values."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.tools.registry import RegisteredTool

MAX_OPEN_CALLS: Final = 32
"""Calls that one client may have running at a time."""


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
