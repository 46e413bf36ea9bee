"""`get_logger`, and `load_structlog`: structlog comes with the first line that is logged.

Most commands log nothing. And structlog loads rich for tracebacks that this program does not
print, which is more than structlog itself: 45 ms of each daemon's start.
"""

from __future__ import annotations

import sys
from typing import Any

_RICH = "rich"


def get_logger(name: str | None = None) -> Any:
    """Return a logger as structlog's `get_logger` does, which loads it when it is used."""
    return _Logger(name)


def load_structlog() -> Any:
    """Return the module structlog, without rich if it was not loaded before."""
    hidden = _RICH not in sys.modules and "structlog" not in sys.modules
    if hidden:
        sys.modules[_RICH] = None  # type: ignore[assignment] - how Python marks what is not installed
    try:
        import structlog  # noqa: PLC0415 - this is the one place
    finally:
        if hidden:
            sys.modules.pop(_RICH, None)
    return structlog


class _Logger:
    """Hands every use to structlog's logger of that name, as it is configured at that time."""

    __slots__ = ("_name",)

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __getattr__(self, use: str) -> Any:
        names = () if self._name is None else (self._name,)
        return getattr(load_structlog().get_logger(*names), use)
