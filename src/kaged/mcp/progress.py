"""`PROGRESS`: where the call that runs in this task may report how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

Report = Callable[[float, float | None, str], None]
"""Takes what is done, of how much if that is known, and a word about it. Does not wait."""

PROGRESS: Final[ContextVar[Report | None]] = ContextVar("kaged_mcp_progress", default=None)
