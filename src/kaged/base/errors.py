"""The one base of every error that has a public code."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonValue


class KagedError(Exception):
    """An error with a stable public `code`, a message for people and `data` for machines.

    `fix` is the sentence that tells the reader what to do about it. Codes are public API and come
    from the specifications letter for letter; message text is not API and is never matched.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, fix: str | None = None, **data: JsonValue) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.data: dict[str, JsonValue] = data

    def __str__(self) -> str:
        """Return the message, with the fix behind it when there is one."""
        return f"{self.message} ({self.fix})" if self.fix else self.message
