"""`CapturedOutput`: what a debugged program printed and nobody has read yet."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject

OUTPUT_LIMIT_CHARS: Final = 64 * 1024


class CapturedOutput:
    """Keeps the first of it; what comes when it is full is dropped."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chars = 0

    def hear(self, body: JsonObject) -> None:
        """Take an `output` event."""
        text = body.get("output")
        if isinstance(text, str) and body.get("category") not in ("telemetry", "important"):
            room = OUTPUT_LIMIT_CHARS - self._chars
            if room > 0:
                self._texts.append(text[:room])
                self._chars += min(len(text), room)

    def take(self) -> str:
        """Return all of it, once."""
        text = "".join(self._texts)
        self._texts.clear()
        self._chars = 0
        return text
