"""`SessionsSection`: what the operator says about sessions, whichever project they belong to."""

from __future__ import annotations

from typing import Final

from kaged.config.records import key, record
from kaged.config.shapes import Whole

DEFAULT_IDLE_SECONDS: Final = 300
MAX_IDLE_SECONDS: Final = 7 * 24 * 3600


@record
class SessionsSection:
    """The sessions of all projects."""

    idle_seconds: int = key(
        Whole(1, MAX_IDLE_SECONDS),
        "After how many seconds without a run a session counts as idle and plugins are notified.",
        default=DEFAULT_IDLE_SECONDS,
    )
