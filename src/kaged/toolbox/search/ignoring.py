"""Which ignore files count: git's own, up to the repository's top or the project's root."""

from __future__ import annotations

import os

from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.search.engine import Scope

_GIT_RULES = ("--no-ignore-dot",)
"""Git knows nothing of `.ignore`."""

_PLAIN_RULES = (*_GIT_RULES, "--no-require-git")
"""Ignore files count in a plain directory too (AT-GREP-11).

In a repository the switch would be wrong: with it ripgrep does not see where the repository ends,
and obeys files above it.
"""


@dataclass(frozen=True, slots=True)
class IgnorePlan:
    """The switches for ripgrep, and whether it has to start at the root to see the root's rules."""

    switches: tuple[str, ...]
    from_root: bool = False


def plan_ignoring(scope: Scope) -> IgnorePlan:
    """Decide how ripgrep comes to git's own verdict for a place. Looks at a few names on disk."""
    if not scope.gitignore:
        return IgnorePlan(("--no-ignore",))
    above = _ancestors(scope.root)
    if any(os.path.lexists(f"{place}/.git") for place in (scope.root, *above)):
        return IgnorePlan(_GIT_RULES)
    if not any(os.path.lexists(f"{place}/.gitignore") for place in above):
        return IgnorePlan(_PLAIN_RULES)
    # A `.gitignore` above a project that is in no repository is nobody's business here. Without
    # parents ripgrep misses the project's own rules too, unless it starts where they lie.
    return IgnorePlan(
        (*_PLAIN_RULES, "--no-ignore-parent"), from_root=any(path != "./" for path in scope.paths)
    )


def _ancestors(path: str) -> list[str]:
    found: list[str] = []
    while path not in {"/", ""}:
        path = path.rpartition("/")[0] or "/"
        found.append(path)
    return found
