"""`ChangedFiles`: tells an agent before each step which files are not as it has read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kaged.base import KagedError
from kaged.workspace.text import sendable

if TYPE_CHECKING:
    from kaged.sessions.agent_run import AgentRun
    from kaged.workspace import Workspace

MAX_LOOKED_AT: Final = 500
"""How many of the files that an agent has read are compared before a step: the last ones."""

MAX_LISTED: Final = 20

_CHANGED: Final = "These files have changed since you read them; read them again before you rely on"
_GONE: Final = "These files, which you have read, are gone"


class ChangedFiles:
    """Notes about files that somebody else has changed: a person, a command, another agent.

    A file stays in the note until the agent has read or written it again; one that is gone is told
    of once. Nothing of it is stored.
    """

    def __init__(self, workspace_of: Callable[[str], Workspace]) -> None:
        self._workspace_of = workspace_of

    async def note(self, agent_run: AgentRun) -> str | None:
        """Return what an agent is told before its next step; None when all is as it knows it."""
        run, caller = agent_run.run, agent_run.path
        try:
            workspace = self._workspace_of(run.project_id)
        except KagedError:
            return None  # the project was unloaded meanwhile, and what was read in it forgotten
        known = workspace.reads.newest(run.session_id, caller, MAX_LOOKED_AT)
        if not known:
            return None
        found = await workspace.threads.run(lambda: workspace.changed_reads.among(known))
        for one in found:
            if one.gone:
                workspace.reads.forget(run.session_id, caller, one.resolved)
        names = {one: sendable(workspace.relative_of(one.resolved)) for one in found}
        parts = [
            _listed(f"{_CHANGED} them:", [name for one, name in names.items() if not one.gone]),
            _listed(f"{_GONE}:", [name for one, name in names.items() if one.gone]),
        ]
        return "\n".join(one for one in parts if one) or None


def _listed(title: str, names: list[str]) -> str:
    """Write a list under its title, cut to a length; nothing at all when it is empty."""
    if not names:
        return ""
    lines = [title, *(f"- {one}" for one in names[:MAX_LISTED])]
    if len(names) > MAX_LISTED:
        lines.append(f"({len(names) - MAX_LISTED} more)")
    return "\n".join(lines)
