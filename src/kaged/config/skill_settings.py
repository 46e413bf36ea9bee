"""`policy_of_skill`: `[skills.*]` of the operator over what a skill's own file says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from kaged.config.providers import SkillSection
from kaged.config.sections import Sections
from kaged.config.skill_file import SkillMetadata
from kaged.kernel.skill_policy import SkillPolicy

DEFAULT_SKILLS: Final = "defaults"
"""The section that holds the settings of all skills; no skill has this name."""

_NO_CHAT: Final = ("\0",)  # an id that no chat has
_PRIVATE: Final = frozenset({"private"})


def skills_in_force(sections: Sections[SkillSection]) -> Mapping[str, SkillSection]:
    """Return the settings of skills; what cannot be read allows nothing.

    A skill whose section is broken is off. A broken `[skills.defaults]` could hold the chats that
    skills are limited to, so all are off that do not name theirs.
    """
    closed = SkillSection(enabled=False, allow_chat_ids=_NO_CHAT)
    return {**sections.good, **dict.fromkeys(sections.broken, closed)}


def policy_of_skill(said: SkillMetadata, settings: Mapping[str, SkillSection]) -> SkillPolicy:
    """Return who may use a skill where."""
    section = settings.get(said.name) if said.name != DEFAULT_SKILLS else None
    section = section or SkillSection()
    chat_ids = section.allow_chat_ids
    if chat_ids is None:
        # An explicitly empty list of the skill's own lifts the default; absence does not.
        chat_ids = settings.get(DEFAULT_SKILLS, SkillSection()).allow_chat_ids
    return SkillPolicy(
        said.name,
        section.enabled is not False,
        frozenset(said.chat_types) or (_PRIVATE if said.sensitive else None),
        frozenset(chat_ids) if chat_ids else None,
        said.capabilities,
    )


def skill_env(name: str, settings: Mapping[str, SkillSection]) -> dict[str, str]:
    """Return the variables that the operator's settings give to a skill's scripts."""
    section = settings.get(name)
    if section is None:
        return {}
    return {
        key.upper().replace("-", "_"): value if isinstance(value, str) else json.dumps(value)
        for key, value in section.extras.items()
    }
