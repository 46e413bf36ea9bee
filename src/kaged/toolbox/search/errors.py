"""What can go wrong with a search."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError
from kaged.tools import ToolError


class InvalidSearchPattern(ToolError):
    """The regular expression or glob cannot be read; the message has the engine's own words."""

    code: ClassVar[str] = "invalid_pattern"


class EngineUnavailable(KagedError):
    """A native search engine is not there or does not run: the daemon cannot start without it."""

    code: ClassVar[str] = "engine_unavailable"


class EngineFailed(ToolError):
    """The search engine gave up for a reason of its own; `detail` has its words."""

    code: ClassVar[str] = "internal_error"
