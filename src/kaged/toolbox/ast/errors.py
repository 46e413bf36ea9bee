"""What can go wrong with structural search and rewriting."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError
from kaged.tools import ToolError


class InvalidAstPattern(ToolError):
    """The pattern is no complete piece of code in its language."""

    code: ClassVar[str] = "invalid_pattern"

    @classmethod
    def of(cls, pattern: str, problem: str) -> InvalidAstPattern:
        """Return the error for a pattern, with how patterns are written."""
        return cls(
            f"the pattern {pattern[:200]!r} cannot be used: {problem}",
            fix="write one complete expression or statement, e.g. console.log($MSG) or "
            "def $F($$$ARGS): $$$BODY; $NAME stands for one node, $$$NAME for any number",
            detail={"pattern": pattern[:2000], "problem": problem},
        )


class SourceUnparsable(ToolError):
    """The only file that could have been rewritten has syntax errors; nothing was changed."""

    code: ClassVar[str] = "parse_error"


class AstTimeUp(ToolError):
    """Not all files could be looked at in time, so none was changed."""

    code: ClassVar[str] = "ast_time_up"


class AstEngineFailed(ToolError):
    """The parser process failed; `detail` has its words."""

    code: ClassVar[str] = "internal_error"


class AstEngineUnavailable(KagedError):
    """The ast-grep binding cannot be loaded: the daemon cannot start without it."""

    code: ClassVar[str] = "engine_unavailable"
