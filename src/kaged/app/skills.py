"""`build_skills`: the skills of the operator and of projects, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from kaged.audit import AuditLog
from kaged.base.log import get_logger
from kaged.config.settings import Settings
from kaged.config.skill_settings import skills_in_force
from kaged.inbox import Inbox
from kaged.skills.approvals import SkillApprovals
from kaged.skills.consent import SkillConsents
from kaged.skills.copies import SkillCopies
from kaged.skills.skill_service import SkillService

APPROVALS = "skill-approvals.json"

_log = get_logger("kaged.skills")


async def build_skills(
    settings: Callable[[], Settings],
    *,
    inbox: Inbox,
    audit: AuditLog,
    closing: AsyncExitStack,
) -> SkillService:
    """Read the operator's skills, and what was agreed to before."""
    places = settings().places
    approvals = SkillApprovals(places.data_dir / APPROVALS)
    try:
        await asyncio.to_thread(approvals.load)
    except (OSError, ValueError) as error:
        # Nothing is agreed to then: every skill asks again.
        _log.error("skill.approvals_unreadable", error=str(error))
    consents = SkillConsents(inbox, approvals, audit.post)
    skills = SkillService(
        places.config_dir,
        lambda: skills_in_force(settings().daemon.value.skills),
        consents,
        SkillCopies(places.cache_dir),
    )
    closing.push_async_callback(skills.close)
    await skills.start()
    return skills
