"""`Log`: structured lines on stderr, never on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40}


class Log:
    """Writes one JSON object per line to stderr; the host tags it with the plugin's name."""

    def __init__(self, level: str | None = None) -> None:
        chosen = level or os.environ.get("KAGED_LOG_LEVEL", "info")
        self._least = _LEVELS.get(chosen.lower(), 20)

    def __call__(self, message: str, **fields: Any) -> None:
        """Write at level info."""
        self._write("info", message, fields)

    def debug(self, message: str, **fields: Any) -> None:
        """Write what only the author wants to see."""
        self._write("debug", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Write what an operator may want to see."""
        self._write("info", message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Write what an operator should look at."""
        self._write("warning", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """Write what went wrong."""
        self._write("error", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, Any]) -> None:
        if _LEVELS[level] >= self._least:
            line = json.dumps({"level": level, "msg": message, **fields}, default=repr)
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
