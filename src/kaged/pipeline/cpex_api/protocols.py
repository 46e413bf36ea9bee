"""Shapes of messages and prompt results, for plugins that check them with `isinstance`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class MessageLike(Protocol):
    """Anything with a role and content."""

    role: str
    content: Any


@runtime_checkable
class PromptResultLike(Protocol):
    """Anything with messages and a description."""

    messages: Sequence[MessageLike]
    description: str | None
