"""`SkillRegistry`: skills as the gates see them, the operator's settings over their own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from kaged.base.lazy_dataclass import dataclass
from kaged.config.providers import SkillSection
from kaged.config.skill_file import SkillMetadata
from kaged.config.skill_settings import DEFAULT_SKILLS, policy_of_skill
from kaged.kernel.skill_policy import SkillPolicy


@dataclass(slots=True)
class SkillRegistry:
    """The skills of this host.

    `metadata` is what the files of the operator's skills say now. Those of projects are not in it:
    what they may use is in the token of the command that runs for them.
    """

    settings: Mapping[str, SkillSection] = field(default_factory=dict)
    metadata: dict[str, SkillMetadata] = field(default_factory=dict)

    def policy_of(self, skill: str) -> SkillPolicy | None:
        """Return the policy of a skill; None when neither place names it."""
        said = self.metadata.get(skill)
        named = skill in self.settings and skill != DEFAULT_SKILLS
        if said is None and not named:
            return None
        return policy_of_skill(said or SkillMetadata(skill), self.settings)
