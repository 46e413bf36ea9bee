"""`AgentRouting`: what an agent's prompt says about the skills and accounts that it may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kaged.skills.routing import LOAD_TOOL, RUN_TOOL, accounts_line, skills_block

if TYPE_CHECKING:
    from kaged.sessions.agent_run import RunState
    from kaged.sessions.snapshot import AgentSnapshot
    from kaged.skills.skill_service import SkillService

ACCOUNTS_GRANT: Final = "services"
"""The named capability of a cage that lets its commands ask for people's accounts."""

_COMMANDS: Final = "shell."


class AgentRouting:
    """Looks at the skills anew for every run of an agent. `accounts` says whether any exist."""

    def __init__(
        self, skills: SkillService, accounts: Callable[[], bool], *, only_skills: bool
    ) -> None:
        self._skills = skills
        self._accounts = accounts
        self._only_skills = only_skills

    async def __call__(self, run: RunState, snapshot: AgentSnapshot) -> str:
        """Return the part of the prompt; empty for an agent that can use neither."""
        tools, named = snapshot.tools.enabled, snapshot.names.safe
        parts: list[str] = []
        if LOAD_TOOL in tools:
            offered = await self._skills.offered(run.project_id, run.identity)
            parts.append(skills_block(offered, named, can_run=RUN_TOOL in tools))
        if self._has_accounts(run, snapshot):
            parts.append(accounts_line(only_skills=self._only_skills, named=named))
        return "\n\n".join(filter(None, parts))

    def _has_accounts(self, run: RunState, snapshot: AgentSnapshot) -> bool:
        policy, tools = snapshot.policy, snapshot.tools.enabled
        if policy is None or ACCOUNTS_GRANT not in policy.capabilities or run.identity is None:
            return False
        runs = RUN_TOOL in tools
        commands = any(name.startswith(_COMMANDS) for name in tools)
        return (runs or (commands and not self._only_skills)) and self._accounts()
