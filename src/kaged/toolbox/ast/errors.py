"""What can go wrong with structural search and rewriting."""

from __future__ import annotations

from kaged.tools import ToolError


class InvalidAstPattern(ToolError):
    """The pattern is no complete piece of code in its language."""

    code = "invalid_pattern"

    @classmethod
    def of(cls, pattern: str, problem: str) -> InvalidAstPattern:
        """Return the error for a pattern, with how patterns are written."""
        return cls(
            f"the pattern {pattern[:200]!r} cannot be used: {problem}",
            fix="write one complete expression or statement, e.g. console.log($MSG) or "
            "def $F($$$ARGS): $$$BODY; $NAME stands for one node, $$$NAME for any number",
            detail={"pattern": pattern[:2000], "problem": problem},
        )
