"""Why an edit did not happen, as errors with a code."""

from __future__ import annotations

from typing import ClassVar

from kaged.tools import ToolError


class OldStringNotFound(ToolError):
    """The text to be replaced is not in the file; `detail.closest` says what comes near."""

    code: ClassVar[str] = "old_string_not_found"


class MultipleMatches(ToolError):
    """The text to be replaced is there more than once; `detail.count` says how often."""

    code: ClassVar[str] = "multiple_matches"


class NoChange(ToolError):
    """Old and new text are the same."""

    code: ClassVar[str] = "no_change"
