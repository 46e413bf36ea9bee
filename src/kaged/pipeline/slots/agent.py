"""The agent slot: session tracking and the lineage of agents that led to this call."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kaged.pipeline.slots.base import Slot

MAX_HISTORY = 100
"""Messages of history that a conversation context may carry."""


class ConversationContext(Slot):
    """What was said before, shortened: recent messages, a summary and topics."""

    history: list[Any] = Field(default_factory=list, max_length=MAX_HISTORY)
    summary: str | None = None
    topics: list[str] = Field(default_factory=list)


class AgentExtension(Slot):
    """Which agent acts, in which session and turn, on whose behalf."""

    input: str | None = None
    session_id: str | None = None
    conversation_id: str | None = None
    turn: int | None = None
    agent_id: str | None = None
    parent_agent_id: str | None = None
    conversation: ConversationContext | None = None
