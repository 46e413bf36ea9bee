"""Slots about the language model: which one it is, and how its answer ended."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from kaged.pipeline.slots.base import Slot


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    RETURN = "return"
    CALL = "call"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"


class TokenUsage(Slot):
    """What a completion cost in tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class CompletionExtension(Slot):
    """How a completion ended, what it used and how long it took."""

    stop_reason: StopReason | None = None
    tokens: TokenUsage | None = None
    model: str | None = None
    raw_format: str | None = None
    created_at: str | None = None
    latency_ms: int | None = None


class LLMExtension(Slot):
    """Which model is asked, and what it can do."""

    model_id: str | None = None
    provider: str | None = None
    capabilities: list[str] = Field(default_factory=list)
