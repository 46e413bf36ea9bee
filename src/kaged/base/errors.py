"""The one base of every error that has a public code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonValue


class KagedError(Exception):
    """An error with a stable public `code`, a message for people and `data` for machines.

    `fix` is the sentence that tells the reader what to do about it. Codes are public API and come
    from the specifications letter for letter; message text is not API and is never matched. Every
    code has its row in `kaged.base.error_codes`. A class of its own is for errors that somebody
    catches; the others are raised as their nearest base with a `code`.
    """

    code: str = "internal"

    def __init__(
        self, message: str, *, code: str | None = None, fix: str | None = None, **data: JsonValue
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.fix = fix
        self.data: dict[str, JsonValue] = data

    def __str__(self) -> str:
        """Return the message, with the fix behind it when there is one."""
        return f"{self.message} ({self.fix})" if self.fix else self.message
